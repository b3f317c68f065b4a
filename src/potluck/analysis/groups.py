"""Runs of one method and setting that differ only in their seed, put together under one label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from potluck.core.errors import PotluckError
from potluck.experiment.differences import question
from potluck.runs.run import Run

_SHOWN_SETTINGS = 3


@dataclass(frozen=True)
class Group:
    """One line of a comparison: the same question asked with one or several seeds."""

    label: str
    method: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in increasing order; one run each."""
        return tuple(run.seed for run in self.runs)

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that statistics are taken over: the finished ones, or all while none is finished."""
        return tuple(run for run in self.runs if run.finished) or self.runs


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Group runs by method and settings, in the order in which each group's first run was given.

    A folder given twice counts once. A second run with the same seed and settings becomes a group of its own:
    counted as another seed it would only pretend to more certainty.
    """
    buckets: dict[tuple[Any, ...], list[Run]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        copy = 0
        while any(other.seed == run.seed for other in buckets.get((*_question(run), copy), ())):
            copy += 1
        buckets.setdefault((*_question(run), copy), []).append(run)
    groups = [
        Group(members[0].method, members[0].method, tuple(sorted(members, key=lambda run: run.seed)))
        for members in buckets.values()
    ]
    if not groups:
        raise PotluckError("No runs to compare: pass at least one run folder.")
    return _tell_apart(groups)


def settings_of(run: Run) -> dict[str, object]:
    """The run's settings as one flat table of dotted names, without those that do not change the question."""
    return {key: value for key, value in question(run.experiment).items() if key != "seed"}


def differing_settings(runs: Sequence[Run]) -> dict[str, tuple[object, ...]]:
    """The settings in which the runs are not all alike, with the value in every run (None where absent)."""
    tables = [settings_of(run) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: tuple(table.get(key) for table in tables) for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}


def _question(run: Run) -> tuple[Any, ...]:
    settings = sorted((key, repr(value)) for key, value in settings_of(run).items())
    return (run.method, run.dataset, tuple(settings))


def _shown(key: str, value: object) -> str:
    """A setting in a label: short, and `models=a b` rather than `names=['a', 'b']`."""
    section, _, name = key.rpartition(".")
    name = section if name in ("name", "names", "rule") else name
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


def _tell_apart(groups: list[Group]) -> list[Group]:
    """Give groups of the same method labels that name the settings in which they differ."""
    labelled: list[Group] = []
    for group in groups:
        same = [other for other in groups if other.method == group.method]
        differing = differing_settings([other.runs[0] for other in same])
        shown = {key: row[same.index(group)] for key, row in list(differing.items())[:_SHOWN_SETTINGS]}
        details = ", ".join(_shown(key, value) for key, value in shown.items())
        labelled.append(replace(group, label=f"{group.method} ({details})" if details else group.label))
    seen: set[str] = set()
    for position, group in enumerate(labelled):
        if group.label in seen:
            labelled[position] = replace(group, label=f"{group.label} [{group.runs[0].name}]")
        seen.add(labelled[position].label)
    return labelled
