"""Do two experiments ask the same? Each setting says itself whether results depend on it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from potluck.core.settings import settings_of
from potluck.experiment.checks import known_settings
from potluck.experiment.experiment import Experiment, dotted


@functools.cache
def _without_effect() -> frozenset[str]:
    return frozenset(name for name, results in known_settings(Experiment) if not results)


@functools.cache
def _later() -> dict[str, Any]:
    """The defaults of settings that came after results were on record."""
    sections = {name: field.annotation for name, field in Experiment.model_fields.items()}
    return {
        f"{name}.{each.name}": each.default
        for name, section in sections.items()
        for each in settings_of(section)
        if each.later
    }


def changes_results(name: str) -> bool:
    """Whether a result depends on the setting of this dotted name; of an unknown one it is feared."""
    return name not in _without_effect()


def question(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that results depend on, by dotted names, out of an experiment's nested values.

    A setting that came later is no part of it at its default: it then asks what was asked before it was there.
    """
    return {
        name: _plain(value)
        for name, value in dotted(values).items()
        if changes_results(name) and not (name in _later() and value == _later()[name])
    }


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The first setting in which two experiments ask something else, in words."""
    mine, theirs = question(old), question(new)
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            return f"{name} is {mine.get(name)!r} there and {theirs.get(name)!r} here"
    return None


def only_more_rounds(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the new experiment is the old one with more rounds, so that a run of the old one is its beginning."""
    mine, theirs = question(old), question(new)
    before, after = (one.pop("schedule.rounds", 0) for one in (mine, theirs))
    return bool(mine == theirs and after > before > 0)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
