"""Descriptions of all settings, and a JSON schema for editors."""

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
class SettingDescription:
    """One setting, for readers."""

    name: str
    kind: str
    default: Any
    meaning: str
    results: bool = True


def sections() -> dict[str, str]:
    """Return the sections of an experiment file, each with a one-line description."""
    return {
        name: (field.annotation.__doc__ or "").splitlines()[0]
        for name, field in Experiment.model_fields.items()
        if isinstance(field.annotation, type) and name not in ("seed", "objects")
    }


def describe_settings(where: str = "") -> list[SettingDescription]:
    """Describe every setting, those of a section or method, or the one with this dotted name."""
    entries = list(_all())
    if where in METHODS or ":" in where:  # a method, or the user's own: module:Class
        return list(_of("method", method_class(where)))
    selected = [entry for entry in entries if where in ("", entry.name, entry.name.partition(".")[0])]
    if not selected:
        raise unknown("section or setting", where, [*sections(), *(entry.name for entry in entries)])
    return selected


def _all() -> Iterator[SettingDescription]:
    for name, field in Experiment.model_fields.items():
        if dataclasses.is_dataclass(field.annotation) and isinstance(field.annotation, type):
            yield from _of(name, field.annotation)
        elif name == "method":
            meaning = (
                "a method of `potluck methods`, or your own module:Class; its settings are in this section"
            )
            yield SettingDescription("method.name", "text", field.default.name, meaning)
        elif name != "objects":
            yield SettingDescription(
                name, describe_type(field.annotation), field.default, field.description or ""
            )


def _of(section: str, kind: type[Any]) -> Iterator[SettingDescription]:
    hints = typing.get_type_hints(kind)
    limits = {entry.name: describe_limits(entry.metadata) for entry in dataclasses.fields(kind)}
    for each in settings_of(kind):
        words = ", ".join([describe_type(hints[each.name]), *limits[each.name]])
        yield SettingDescription(f"{section}.{each.name}", words, each.default, each.meaning, each.results)


def describe_limits(metadata: typing.Mapping[str, Any]) -> list[str]:
    """Format the limits of a setting's declaration: `≥ 1`, `< 0.5`."""
    return [f"{sign} {metadata[key]:g}" for key, sign in _SIGNS.items() if key in metadata]


def describe_type(kind: Any, mark: Callable[[str], str] = str) -> str:
    """Describe a type such as `int` or `Literal["a", "b"]`; `mark` formats literal values."""
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(mark(str(value)) for value in typing.get_args(kind))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " or ".join(
            describe_type(part, mark) for part in typing.get_args(kind) if part is not type(None)
        )
    if typing.get_origin(kind) is tuple:
        inner = describe_type(typing.get_args(kind)[0])
        return {"text": "words", "number": "numbers"}.get(inner, f"list of {inner}")
    return _NAMES[kind]


# -- for editors --------------------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """Return the JSON schema of an experiment file, with the settings of the built-in methods."""
    result = _without_null(Experiment.model_json_schema())
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    result["title"] = "Potluck experiment"
    result["properties"]["method"] = _method_schema()
    return dict(result)


def _method_schema() -> dict[str, Any]:
    """Return the schema of the method section: for each name its settings; any settings for a user's method."""
    cases = []
    for name in METHODS:
        schema = _without_null(TypeAdapter(method_class(name)).json_schema())
        properties = {"name": {"const": name}, **schema.get("properties", {})}
        section = {"properties": properties, "additionalProperties": False}
        cases.append({"if": {"properties": {"name": {"const": name}}, "required": ["name"]}, "then": section})
    names = {"anyOf": [{"enum": list(METHODS)}, {"type": "string", "pattern": "^[^:]+:[^:]+$"}]}
    about = {"description": "a method of `potluck methods`, or your own module:Class"}
    return {"type": "object", "properties": {"name": {**names, **about}}, "allOf": cases}


def _without_null(value: Any) -> Any:
    """Remove null from a schema: TOML has no null, and unset values are left out of the file."""
    if isinstance(value, list):
        return [_without_null(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    cleaned = {
        key: _without_null(entry) for key, entry in value.items() if not (key == "default" and entry is None)
    }
    choices = [entry for entry in cleaned.get("anyOf", ()) if entry != {"type": "null"}]
    if len(choices) == 1:
        del cleaned["anyOf"]
        return {**choices[0], **cleaned}
    return {**cleaned, "anyOf": choices} if choices else cleaned
