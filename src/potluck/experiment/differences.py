"""Differences between experiments: each setting declares whether results depend on it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from potluck.core.needs import Need
from potluck.core.settings import Setting, settings_of
from potluck.experiment.checks import all_settings
from potluck.experiment.experiment import Experiment, as_list, flat_settings, parse_experiment


@functools.cache
def _settings_without_influence() -> frozenset[str]:
    return frozenset(name for name, results in all_settings(Experiment) if not results)


@functools.cache
def _declared() -> dict[str, Setting]:
    """Return the settings of all sections by their dotted names."""
    sections = {name: field.annotation for name, field in Experiment.model_fields.items()}
    return {
        f"{name}.{each.name}": each for name, section in sections.items() for each in settings_of(section)
    }


@functools.cache
def _defaults_of_later_settings() -> dict[str, Any]:
    """Return the defaults of settings that were added after results had been recorded."""
    return {name: each.default for name, each in _declared().items() if each.later}


def is_default(name: str, value: Any) -> bool:
    """Tell whether a value is the setting's default, of this version or of an earlier one."""
    each = _declared()[name]
    return value == each.default or value in each.earlier


def changes_results(name: str) -> bool:
    """Tell whether results depend on the setting of this dotted name; an unknown setting counts as one that does."""
    return name not in _settings_without_influence()


def result_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that results depend on, by dotted names, from an experiment's nested values.

    A setting that was added later is left out at its default, so that older experiments stay the same.
    """
    later = _defaults_of_later_settings()
    return {
        name: as_list(value)
        for name, value in flat_settings(values).items()
        if changes_results(name) and not (name in later and value == later[name])
    }


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of settings by dotted names."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Describe the first setting that results depend on and that differs between two experiments."""
    before, after = result_settings(old), result_settings(new)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            return f"{name} is {before.get(name)!r} there and {after.get(name)!r} here"
    return None


def extends_rounds(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether the new experiment is the old one with more rounds."""
    before, after = result_settings(old), result_settings(new)
    fewer, more = before.pop("schedule.rounds", 0), after.pop("schedule.rounds", 0)
    return bool(before == after and more > fewer > 0)


def comparable_experiments(settings: Sequence[Mapping[str, Any]]) -> list[Experiment]:
    """Build experiments that differ in method and seed only: public data that one needs are held out for all."""
    experiments = [parse_experiment(values) for values in settings]
    if any(Need.PUBLIC_DATA in experiment.build_method().requires() for experiment in experiments):
        return [
            experiment.with_settings({"data.public": 0.1}) if experiment.data.public == "auto" else experiment
            for experiment in experiments
        ]
    return experiments
