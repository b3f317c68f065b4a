"""Settings for readers: every one in words, and as a JSON schema that editors check and complete files by."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import TypeAdapter

from potluck.core.errors import unknown
from potluck.core.settings import settings_of
from potluck.experiment.experiment import Experiment
from potluck.methods import METHODS, method_class

_NAMES = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclasses.dataclass(frozen=True)
class Described:
    """One setting in words."""

    name: str
    kind: str
    default: Any
    meaning: str
    results: bool = True


def sections() -> dict[str, str]:
    """The sections of an experiment file, each with a line about it."""
    return {
        name: (field.annotation.__doc__ or "").splitlines()[0]
        for name, field in Experiment.model_fields.items()
        if isinstance(field.annotation, type) and name not in ("seed", "objects")
    }


def described(where: str = "") -> list[Described]:
    """Every setting, or those of one section, or the one of this dotted name, or those of a method."""
    everything = list(_all())
    if where in METHODS:
        return list(_of("method", method_class(where)))
    chosen = [one for one in everything if where in ("", one.name, one.name.partition(".")[0])]
    if not chosen:
        raise unknown("section or setting", where, [*sections(), *(one.name for one in everything)])
    return chosen


def _all() -> Iterator[Described]:
    for name, field in Experiment.model_fields.items():
        if dataclasses.is_dataclass(field.annotation) and isinstance(field.annotation, type):
            yield from _of(name, field.annotation)
        elif name == "method":
            meaning = "a method of `potluck methods`, or module:Class of your own; its settings follow it"
            yield Described("method.name", "text", field.default.name, meaning)
        elif name != "objects":
            yield Described(name, kind_in_words(field.annotation), field.default, field.description or "")


def _of(section: str, kind: type[Any]) -> Iterator[Described]:
    hints = typing.get_type_hints(kind)
    limits = {entry.name: limits_in_words(entry.metadata) for entry in dataclasses.fields(kind)}
    for each in settings_of(kind):
        words = ", ".join([kind_in_words(hints[each.name]), *limits[each.name]])
        yield Described(f"{section}.{each.name}", words, each.default, each.meaning, each.results)


def limits_in_words(metadata: typing.Mapping[str, Any]) -> list[str]:
    """`≥ 1`, `< 0.5`, as a setting's declaration has them."""
    return [f"{sign} {metadata[key]:g}" for key, sign in _SIGNS.items() if key in metadata]


def kind_in_words(kind: Any, mark: Callable[[str], str] = str) -> str:
    """`int` and `Literal["a", "b"]` as a reader says them; `mark` dresses words that are typed as they stand."""
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(mark(str(one)) for one in typing.get_args(kind))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " or ".join(kind_in_words(one, mark) for one in typing.get_args(kind) if one is not type(None))
    if typing.get_origin(kind) is tuple:
        inner = kind_in_words(typing.get_args(kind)[0])
        return {"text": "words", "number": "numbers"}.get(inner, f"list of {inner}")
    return _NAMES[kind]


# -- for editors --------------------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """The JSON schema of an experiment file, with the settings of the built-in methods."""
    found = _without_null(Experiment.model_json_schema())
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    found["title"] = "Potluck experiment"
    found["properties"]["method"] = _method_schema()
    return dict(found)


def _method_schema() -> dict[str, Any]:
    """`name`, and for each name the settings that go with it; a method of one's own may have any."""
    cases = []
    for name in METHODS:
        theirs = _without_null(TypeAdapter(method_class(name)).json_schema())
        properties = {"name": {"const": name}, **theirs.get("properties", {})}
        known = {"properties": properties, "additionalProperties": False}
        cases.append({"if": {"properties": {"name": {"const": name}}, "required": ["name"]}, "then": known})
    names = {"anyOf": [{"enum": list(METHODS)}, {"type": "string", "pattern": "^[^:]+:[^:]+$"}]}
    about = {"description": "a method of `potluck methods`, or module:Class of your own"}
    return {"type": "object", "properties": {"name": {**names, **about}}, "allOf": cases}


def _without_null(value: Any) -> Any:
    """TOML has no null: what may be unset is left out of the file."""
    if isinstance(value, list):
        return [_without_null(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    kept = {
        key: _without_null(entry) for key, entry in value.items() if not (key == "default" and entry is None)
    }
    choices = [entry for entry in kept.get("anyOf", ()) if entry != {"type": "null"}]
    if len(choices) == 1:
        del kept["anyOf"]
        return {**choices[0], **kept}
    return {**kept, "anyOf": choices} if choices else kept
