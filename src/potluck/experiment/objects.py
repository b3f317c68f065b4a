"""Python objects as parts of an experiment: they determine settings, which nothing may contradict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from potluck.core.errors import PotluckError, unknown
from potluck.experiment.checks import no_effect
from potluck.experiment.experiment import Experiment, as_list, flat_settings, without_none


def changed_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that differ from their defaults, by dotted names."""
    defaults = flat_settings(Experiment().model_dump(exclude_none=True))
    values = flat_settings(experiment.model_dump(exclude_none=True))
    return {name: value for name, value in values.items() if defaults.get(name) != value}


def apply_objects(
    experiment: Experiment, asked: Mapping[str, Any], objects: Mapping[str, Mapping[str, Any]]
) -> Experiment:
    """Return the experiment with the settings that its objects determine (part → dotted name → value).

    Settings in `asked` that contradict an object, or that have no effect on it, are errors.
    """
    check_objects(experiment, objects)
    defaults = Experiment()
    for part, facts in objects.items():
        if part == "method":
            _check_names(asked, facts)
        for name in sorted(asked.keys() & facts.keys()):
            if as_list(facts[name]) != as_list(asked[name]):
                raise PotluckError(
                    f"{name} = {asked[name]!r} contradicts {_describe(part)} with {facts[name]!r}; leave the setting "
                    f"out, or make {_describe(part)} with it."
                )
        for name in sorted(ineffective_settings([part]) & asked.keys() - facts.keys()):
            if asked[name] != defaults.value(name):
                reason = f"it does not apply to {_describe(part)}; leave it out, or prepare {_describe(part)} with it"
                raise no_effect(name, asked[name], reason)
    # A method is recorded by its name.
    recorded = {part: facts for part, facts in objects.items() if part != "method"}
    settings = {name: value for facts in recorded.values() for name, value in facts.items()}
    return experiment.with_settings({**settings, "objects": tuple(recorded) or None})


def check_objects(experiment: Experiment, objects: Iterable[str]) -> None:
    """Check that the parts that were objects when the experiment was recorded are given again."""
    for name in experiment.objects or ():
        if name in objects:
            continue
        if name == "nodes":
            raise PotluckError(
                "This experiment ran on nodes with data of their own; continue it with engine.name = 'flower'."
            )
        raise PotluckError(
            f"This experiment was made with Python objects ({name}), which its file cannot hold; "
            f"continue it from Python: potluck.run(..., {name}=..., out=..., resume=True)."
        )


def _describe(part: str) -> str:
    return "the nodes' own data and models" if part == "nodes" else f"the {part} object"


def _check_names(asked: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    for name in asked:
        if name.startswith("method.") and name != "method.name" and name not in facts:
            raise unknown("setting", name, facts or ["(the method has none)"])


# -- settings without effect --------------------------------------------------------------------------------------


def _settings_of(*sections: str) -> set[str]:
    defaults = Experiment()
    return {f"{section}.{entry.name}" for section in sections for entry in fields(getattr(defaults, section))}


_NAMED_DATA = {
    f"data.{name}" for name in ("root", "label", "groups", "text", "missing", "image_size", "normalise")
}
_RECORDED = {"data.name", "partition.rule", "partition.clients", "models.names", "models.precision"}
_ON_NODES = {
    "data.root",
    "data.class_names",
    "data.public",
    "data.augment",
    *(f"models.{name}" for name in ("feature_dim", "projection", "shared", "same_init")),
}
_POPULATION = _settings_of("data", "partition", "models", "devices") - _RECORDED
_OBJECTS = {
    "data": _NAMED_DATA,
    "models": {"models.feature_dim", "models.projection"},
    "federation": _POPULATION,
    "nodes": _POPULATION - _ON_NODES,
}
"""Settings without effect for each part that is an object, or where nodes bring their own data."""


def ineffective_settings(objects: Iterable[str]) -> set[str]:
    """Return the settings without effect where these parts are objects."""
    return set().union(*(_OBJECTS.get(name, set()) for name in objects))


def drop_ineffective(values: dict[str, Any], objects: Iterable[str]) -> None:
    """Remove settings without effect from nested values; those that an object determines stay."""
    defaults = without_none(Experiment().model_dump())
    for name in ineffective_settings(objects):
        section, _, key = name.partition(".")
        if values[section].get(key) == defaults[section].get(key):
            values[section].pop(key, None)
