"""What is wrong with given values, as one sentence that names the setting, the value and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from potluck.core.errors import PotluckError, unknown
from potluck.core.settings import settings_of


def one_sentence(error: ValidationError, root: Any, prefix: str = "") -> PotluckError:
    """The first thing that a validation found; `root` is the type that was validated."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    where = prefix + ".".join(path)
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown("setting", where, _near(path, root))
    if first["type"] == "value_error":
        return PotluckError(f"{where}: {first['ctx']['error']}.")
    if first["type"] in ("model_type", "model_attributes_type", "dataclass_type"):
        return PotluckError(
            f"{where} = {first['input']!r} is a value where a section is needed; write [{where}]."
        )
    message = first["msg"][:1].lower() + first["msg"][1:]
    return PotluckError(f"{where} = {first['input']!r} is not valid: {message}.")


def _near(path: list[str], root: Any) -> list[str]:
    """The names that could have been meant: a section, one of the same section, or of that name in any."""
    known = dict(known_settings(root))
    if len(path) == 1 and path[0] not in {name.rpartition(".")[2] for name in known}:
        return list({name.partition(".")[0] for name in known})
    same = [name for name in known if name.rpartition(".")[2] == path[-1]]
    return same or [name for name in known if name.split(".")[:-1] == path[:-1]] or list(known)


def known_settings(root: Any) -> Iterator[tuple[str, bool]]:
    """Every setting of an experiment by its dotted name, and whether results depend on it."""
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
