"""Validation errors as one sentence that names the setting, the value and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from potluck.core.errors import PotluckError, unknown
from potluck.core.settings import settings_of


def validation_error(error: ValidationError, root: Any, prefix: str = "") -> PotluckError:
    """Return the first error of a validation as one sentence; `root` is the type that was validated."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    where = prefix + ".".join(path)
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown("setting", where, _candidates(path, root))
    if first["type"] == "value_error":
        return PotluckError(f"{where}: {first['ctx']['error']}.")
    if first["type"] in ("model_type", "model_attributes_type", "dataclass_type"):
        return PotluckError(
            f"{where} = {first['input']!r} is a value where a section is needed; write [{where}]."
        )
    message = first["msg"][:1].lower() + first["msg"][1:]
    return PotluckError(f"{where} = {first['input']!r} is not valid: {message}.")


def no_effect(name: str, value: Any, reason: str) -> PotluckError:
    """Return the error for a changed setting that nothing acts on; the reason names a remedy."""
    return PotluckError(f"{name} = {value!r} has no effect: {reason}.")


def _candidates(path: list[str], root: Any) -> list[str]:
    """Return the names that could be meant: sections, settings of this name, or settings of the same section."""
    settings = dict(all_settings(root))
    if len(path) == 1 and path[0] not in {name.rpartition(".")[2] for name in settings}:
        return list({name.partition(".")[0] for name in settings})
    same = [name for name in settings if name.rpartition(".")[2] == path[-1]]
    return same or [name for name in settings if name.split(".")[:-1] == path[:-1]] or list(settings)


def all_settings(root: Any) -> Iterator[tuple[str, bool]]:
    """Yield every setting of an experiment by its dotted name, and whether results depend on it."""
    if not (isinstance(root, type) and issubclass(root, BaseModel)):
        yield from ((each.name, each.results) for each in settings_of(root))
        return
    for name, field in root.model_fields.items():
        parts = list(settings_of(field.annotation))
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from ((f"{name}.{part}", True) for part in field.annotation.model_fields)
        elif parts:
            yield from ((f"{name}.{part.name}", part.results) for part in parts)
        else:
            yield name, True
