"""Settings, each declared once: its default, its meaning, its limits, and whether results depend on it.

A section of the experiment is a frozen dataclass of settings, and so are a method's own. The same object is read from a
file, checked, recorded and used by the loop; `potluck settings` and the documentation print it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar


class Settings:
    """Base of every section. Unknown names in a file are errors."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "allow_inf_nan": False,
        "str_strip_whitespace": True,
    }


def setting(
    default: Any,
    meaning: str,
    *,
    results: bool = True,
    later: bool = False,
    earlier: tuple[Any, ...] = (),
    **limits: Any,
) -> Any:
    """Declare a field with its meaning; `limits` are ge, gt, le, lt. `results=False`: no result depends on it.

    `later=True`: it was added after results were stored; at its default, an experiment equals one without it.
    `earlier` are defaults of earlier versions, which folders of runs hold: they count as not set by the user.
    """
    metadata = {"description": meaning, "results": results, "later": later, "earlier": earlier}
    return field(default=default, metadata={**metadata, **limits})


@dataclass(frozen=True)
class Setting:
    """One declared setting."""

    name: str
    kind: str
    default: Any
    meaning: str
    results: bool
    later: bool = False
    earlier: tuple[Any, ...] = ()


def settings_of(section: type[Any] | Any) -> Iterator[Setting]:
    """Yield the settings of a section or a method, in order of declaration."""
    for entry in fields(section) if is_dataclass(section) else ():
        default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
        kind = entry.type if isinstance(entry.type, str) else getattr(entry.type, "__name__", str(entry.type))
        yield Setting(
            entry.name,
            kind,
            None if default is MISSING else default,
            str(entry.metadata.get("description", "")),
            bool(entry.metadata.get("results", True)),
            bool(entry.metadata.get("later", False)),
            entry.metadata.get("earlier", ()),
        )
