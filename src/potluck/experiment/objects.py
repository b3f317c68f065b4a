"""Parts of an experiment that are Python objects: they fill it with their facts, and nothing may contradict them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from potluck.core.errors import PotluckError, unknown
from potluck.experiment.experiment import Experiment, dotted, without_none


def _settings_of(*sections: str) -> set[str]:
    usual = Experiment()
    return {f"{section}.{entry.name}" for section in sections for entry in fields(getattr(usual, section))}


_OF_NAMED_DATA = {f"data.{name}" for name in ("root", "label", "groups", "text", "image_size", "normalise")}
_RECORDED = {"data.name", "partition.rule", "partition.clients", "models.names", "models.precision"}
_ON_NODES = {
    "data.root",
    "data.public",
    "data.augment",
    *(f"models.{name}" for name in ("feature_dim", "projection", "shared", "same_init")),
}
_CANNOT_ACT = {
    "data": _OF_NAMED_DATA,
    "models": {"models.feature_dim", "models.projection"},
    "federation": _settings_of("data", "partition", "models", "devices") - _RECORDED,
    "nodes": _settings_of("data", "partition", "models", "devices") - _RECORDED - _ON_NODES,
}
"""For each part that may be an object, or nodes elsewhere: the settings that then have nothing to act on."""


def cannot_act(objects: Iterable[str]) -> set[str]:
    """Settings that have nothing to act on where these parts are objects."""
    return set().union(*(_CANNOT_ACT.get(name, set()) for name in objects))


def leave_out_inert(values: dict[str, Any], objects: Iterable[str]) -> None:
    """Take settings out of nested values that have nothing to act on where these parts are objects."""
    usual = without_none(Experiment().model_dump())
    for name in cannot_act(objects):
        section, _, key = name.partition(".")
        if values[section].get(key) == usual[section].get(key):  # else it is a fact of an object
            values[section].pop(key, None)


def fill(
    experiment: Experiment, given: Mapping[str, Any], objects: Mapping[str, Mapping[str, Any]]
) -> Experiment:
    """The experiment with the facts of its objects (part: dotted name: value).

    `given` are the values that somebody asked for, by dotted names; one that contradicts a fact, or that has nothing to
    act on, is refused.
    """
    check_present(experiment, objects)
    for part, theirs in objects.items():
        if part == "method":
            _check_known(given, theirs)
        for name, value in given.items():
            if name in theirs and _plain(theirs[name]) != _plain(value):
                raise PotluckError(
                    f"{name} = {value!r} contradicts {_whom(part)} with {theirs[name]!r}; leave the setting out, "
                    f"or make {_whom(part)} with it."
                )
    usual = Experiment()
    for part in objects:
        for name in sorted(_CANNOT_ACT.get(part, ())):
            if name in given and name not in objects[part] and given[name] != _value(usual, name):
                raise PotluckError(
                    f"{name} = {given[name]!r} cannot act on {_whom(part)}; leave it out, or prepare {_whom(part)} so."
                )
    others = {
        part: theirs for part, theirs in objects.items() if part != "method"
    }  # it is recorded by its name
    facts = {name: value for theirs in others.values() for name, value in theirs.items()}
    return experiment.changed({**facts, "objects": tuple(others) or None})


def _whom(part: str) -> str:
    return "the nodes' own data and models" if part == "nodes" else f"the {part} object"


def _check_known(given: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    for name in given:
        if name.startswith("method.") and name != "method.name" and name not in facts:
            raise unknown("setting", name, facts or ["(the method has none)"])


def chosen(experiment: Experiment) -> dict[str, Any]:
    """The settings of an experiment that are not as usual, by dotted names: what somebody must have asked for."""
    usual = dotted(Experiment().model_dump(exclude_none=True))
    values = dotted(experiment.model_dump(exclude_none=True))
    return {name: value for name, value in values.items() if usual.get(name) != value}


def check_present(experiment: Experiment, objects: Iterable[str]) -> None:
    """A part that was an object when the experiment was written down must be given again."""
    for name in experiment.objects or ():
        if name == "nodes" and name not in objects:
            raise PotluckError(
                "This experiment ran on nodes with data of their own; go on with engine.name = 'flower'."
            )
        if name not in objects:
            raise PotluckError(
                f"This experiment was made with Python objects ({name}), which its file cannot hold; "
                f"go on from Python: potluck.run(..., {name}=..., out=..., resume=True)."
            )


def _value(experiment: Experiment, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(experiment, section), key)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
