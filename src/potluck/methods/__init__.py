"""The methods by name; each is one file that reads like its paper's pseudo-code.

A file registers itself: `name` and `summary` of its classes are read from their source, without importing them.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potluck.core import Method

_ORDER = (
    *("standalone", "fedavg", "fedprox", "scaffold", "fednova", "moon", "fedin", "heterofl", "fedrolex"),
    *(
        "inclusivefl",
        "fedgh",
        "lg-fedavg",
        "fd",
        "fedproto",
        "fedtgp",
        "fedhe",
        "fedl2g-l",
        "fedl2g-f",
        "fedgen",
    ),
    *("pfedafm", "fml", "fedkd", "fedmd", "fedapen", "fedmrl", "fedcgs"),
    *("hetlora", "flexlora", "flora"),
)
"""The order of tables and reports; methods that are not listed follow by name."""

_LINE = re.compile(r'^class (\w+)|^    (name|summary): ClassVar\[str\] = \(?\s*"([^"]*)"', re.MULTILINE)


def _scan() -> dict[str, tuple[str, str, str]]:
    """Read (module, class, summary) of every method from the files of this package."""
    entries: dict[str, tuple[str, str, str]] = {}
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        cls = name = ""
        for match in _LINE.finditer(file.read_text(encoding="utf-8")):
            if match[1]:
                cls, name = match[1], ""
            elif match[2] == "name":
                name = match[3]
            elif name:
                entries[name] = file.stem, cls, match[3]
    order = {name: place for place, name in enumerate(_ORDER)}
    return {
        name: entries[name] for name in sorted(entries, key=lambda each: (order.get(each, len(order)), each))
    }


_ENTRIES = _scan()
METHODS: dict[str, tuple[str, str]] = {name: (module, cls) for name, (module, cls, _) in _ENTRIES.items()}
SUMMARIES: dict[str, str] = {name: summary for name, (_, _, summary) in _ENTRIES.items()}
_CLASSES = {cls: module for module, cls in METHODS.values()}
__all__ = ["METHODS", "SUMMARIES", "method_class", *_CLASSES]


def __getattr__(name: str) -> Any:
    """`from potluck.methods import FedGH`: a class is loaded when it is first used."""
    if name not in _CLASSES:
        raise AttributeError(f"module 'potluck.methods' has no attribute {name!r}")
    return getattr(importlib.import_module(f"potluck.methods.{_CLASSES[name]}"), name)


def method_class(name: str) -> type[Method[Any, Any, Any]]:
    """Return the class of a built-in method, or of a user's own named as `module:Class`."""
    from potluck.core.errors import unknown

    if ":" in name:
        return _own_class(name)
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    module, cls = METHODS[name]
    method: type[Method[Any, Any, Any]] = getattr(importlib.import_module(f"potluck.methods.{module}"), cls)
    return method


def _own_class(name: str) -> type[Method[Any, Any, Any]]:
    from potluck.core import Method, PotluckError

    module, _, cls = name.partition(":")
    if not module or not cls or module.startswith("."):
        raise PotluckError(f"method.name {name!r} is not understood; write module:Class.")
    try:
        method = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise PotluckError(
            f"method.name {name!r} could not be imported ({error}); write module:Class."
        ) from None
    except TypeError as error:
        if remedy := _declaration_remedy(str(error)):
            raise PotluckError(f"method.name {name!r} could not be imported: {remedy}.") from None
        raise
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise PotluckError(f"method.name {name!r} is not a subclass of potluck.Method.")
    return method


def _declaration_remedy(message: str) -> str:
    """Return the remedy for a class declaration that Python itself does not allow; empty for any other error."""
    if "non-frozen dataclass" in message:
        return f"a payload is not frozen ({message}); put @dataclass(frozen=True) above the class line of payloads"
    if re.search(r"arguments for .*\bMethod\b", message):
        return "a class does not name its three types; write class Name(Method[State, Down, Up])"
    return ""
