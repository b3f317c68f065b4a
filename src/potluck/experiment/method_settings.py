"""A method's settings: from values to a checked method, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from potluck.core.errors import unknown
from potluck.core.method import Method
from potluck.experiment.checks import one_sentence


def make_method(cls: type[Method[Any, Any, Any]], values: Mapping[str, Any]) -> Method[Any, Any, Any]:
    """A method from its settings; an unknown or unfit one is named with its remedy."""
    known: list[str] = [field.name for field in fields(cls)] if is_dataclass(cls) else []
    for key in values:
        if key not in known:
            raise unknown(f"setting of method {cls.name!r}", key, known or ["(it has none)"])
    try:
        method: Method[Any, Any, Any] = TypeAdapter(cls).validate_python(dict(values))
    except ValidationError as error:
        raise one_sentence(error, cls, "method.") from None
    return method


def values_of(method: Method[Any, Any, Any]) -> dict[str, Any]:
    """A method's settings by name; those left unset (None) are not named."""
    return without_none(asdict(method)) if is_dataclass(method) else {}


def without_none(value: Any) -> Any:
    """Nested values without those that are unset."""
    if isinstance(value, dict):
        return {key: without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [without_none(entry) for entry in value]
    return value
