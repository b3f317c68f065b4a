"""Group runs of one method and its settings over seeds, and sweep a setting over runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from potluck.core.errors import PotluckError, unknown
from potluck.experiment.differences import result_settings
from potluck.methods import METHODS
from potluck.runs.run import Run

BASELINE = "standalone"
"""The method that others are compared with, where it was run."""
_SETTINGS_IN_LABEL = 3


@dataclass(frozen=True)
class Group:
    """Runs of one method with the same settings and different seeds: one line of a comparison.

    `position` decides the colour: the place among the groups in the stored order of methods, Standalone first.
    `given` is the place among the groups as they were given. Neither depends on a later order.
    """

    label: str
    method: str
    runs: tuple[Run, ...]
    position: int = 0
    given: int = 0

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds in increasing order, one per run."""
        return tuple(run.seed for run in self.runs)

    @property
    def counted_runs(self) -> tuple[Run, ...]:
        """Return the runs that statistics use: the finished ones, or all while none is finished."""
        return tuple(run for run in self.runs if run.finished) or self.runs


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Group runs by method and settings, in the order in which each group's first run was given.

    A folder given twice counts once. A second run with the same seed and settings becomes a separate group,
    since counting it as another seed would overstate the certainty.
    """
    buckets: dict[tuple[Any, ...], list[Run]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        copy = 0
        while any(other.seed == run.seed for other in buckets.get((*_group_key(run), copy), ())):
            copy += 1
        buckets.setdefault((*_group_key(run), copy), []).append(run)
    if not buckets:
        raise PotluckError("No runs to compare: pass at least one run folder.")
    ranked = sorted(buckets, key=lambda key: (*method_rank(key[0]), key[1:]))
    positions = {key: position for position, key in enumerate(ranked)}
    groups = [
        Group(key[0], key[0], tuple(sorted(members, key=lambda run: run.seed)), positions[key], order)
        for order, (key, members) in enumerate(buckets.items())
    ]
    return _label(groups)


def method_rank(method: str) -> tuple[int, str]:
    """Return the sort key of a method in tables and colours: the built-in order, then other methods by name."""
    names = list(METHODS)
    return (names.index(method) if method in METHODS else len(names), method)


def reference_group(groups: Sequence[Group], name: str | None = None) -> Group:
    """Return the group that others are compared with: the named one, else Standalone, else the first given."""
    if name is None:
        return min(groups, key=lambda group: (group.method != BASELINE, group.given))
    for group in groups:
        if name in (group.label, group.method):
            return group
    raise unknown("reference method", name, [group.label for group in groups])


def arrange_groups(
    groups: Sequence[Group], order: Sequence[str] = (), names: Mapping[str, str] | None = None
) -> list[Group]:
    """Put the groups listed in `order` first, and replace the labels listed in `names`.

    Both accept a method's name (all its groups) or a group's whole label. Other groups keep their order and label.
    """
    positions = [group.position for name in order for group in _select(groups, name)]
    listed = list(dict.fromkeys(positions))
    rank = {position: place for place, position in enumerate(listed)}
    arranged = sorted(groups, key=lambda group: rank.get(group.position, len(rank)))
    new: dict[int, str] = {}
    for name, text in (names or {}).items():
        for group in _select(groups, name):
            suffix = "" if name == group.label else group.label.removeprefix(group.method)
            new[group.position] = text + suffix
    return [replace(group, label=new.get(group.position, group.label)) for group in arranged]


def _select(groups: Sequence[Group], name: str) -> list[Group]:
    selected = [group for group in groups if name in (group.label, group.method)]
    if not selected:
        raise unknown("method", name, [group.label for group in groups])
    return selected


def settings_of(run: Run) -> dict[str, object]:
    """Return the settings that can change results, as one flat table of dotted names, without the seed."""
    return {key: value for key, value in result_settings(run.experiment).items() if key != "seed"}


def differing_settings(runs: Sequence[Run]) -> dict[str, tuple[object, ...]]:
    """Return the settings that differ between runs, with the value in each run (None where absent)."""
    tables = [settings_of(run) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: tuple(table.get(key) for table in tables) for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}


def _group_key(run: Run) -> tuple[Any, ...]:
    settings = sorted((key, repr(value)) for key, value in settings_of(run).items())
    return (run.method, run.dataset, tuple(settings))


def _setting_text(key: str, value: object) -> str:
    """Write a setting for a label: short, and `models=a b` rather than `names=['a', 'b']`."""
    section, _, name = key.rpartition(".")
    name = section if name in ("name", "names", "rule") else name
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


def _label(groups: list[Group]) -> list[Group]:
    """Label groups of the same method with the settings in which they differ."""
    labelled: list[Group] = []
    for group in groups:
        same = [other for other in groups if other.method == group.method]
        differing = differing_settings([other.runs[0] for other in same])
        shown = {key: row[same.index(group)] for key, row in list(differing.items())[:_SETTINGS_IN_LABEL]}
        details = ", ".join(_setting_text(key, value) for key, value in shown.items())
        labelled.append(replace(group, label=f"{group.method} ({details})" if details else group.label))
    seen: set[str] = set()
    for position, group in enumerate(labelled):
        if group.label in seen:
            labelled[position] = replace(group, label=f"{group.label} [{group.runs[0].name}]")
        seen.add(labelled[position].label)
    return labelled


METRICS = ("best", "final", "last")


@dataclass(frozen=True)
class SweepPoint:
    """The accuracy of a method at one value of the setting."""

    value: object
    mean: float
    std: float  # over seeds; 0 for a single seed
    seeds: int


@dataclass(frozen=True)
class Sweep:
    """One curve per method over the values of a setting."""

    field: str
    metric: str
    methods: dict[str, tuple[SweepPoint, ...]]

    @property
    def values(self) -> list[object]:
        """Return all values that were tried, in order."""
        return sorted({point.value for points in self.methods.values() for point in points}, key=_order)


def sweep(runs: Iterable[Run], field: str, metric: str = "best") -> Sweep:
    """Collect accuracy against the setting `field` of `experiment.toml` (dotted, as in `partition.alpha`)."""
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    accuracies: dict[str, dict[object, list[float]]] = {}
    for run in runs:
        settings = settings_of(run)
        if field not in settings:
            raise unknown(f"setting of run {run.name!r}", field, settings or ["(it has none)"])
        accuracy = float(getattr(run, f"{metric}_accuracy"))
        by_value = accuracies.setdefault(run.method, {})
        by_value.setdefault(_hashable(settings[field]), []).append(accuracy)
    methods = {
        method: tuple(_point(value, by_value[value]) for value in sorted(by_value, key=_order))
        for method, by_value in accuracies.items()
    }
    return Sweep(field, metric, methods)


def _point(value: object, accuracies: list[float]) -> SweepPoint:
    std = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else 0.0
    return SweepPoint(value, float(np.mean(accuracies)), std, len(accuracies))


def _hashable(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _order(value: object) -> tuple[str, float]:
    """Sort numbers before texts; texts that end in a number are sorted by that number."""
    if isinstance(value, int | float):
        return ("", float(value))
    number = re.search(r"\d+(\.\d+)?$", str(value))
    return (str(value)[: number.start()], float(number.group())) if number else (str(value), 0.0)
