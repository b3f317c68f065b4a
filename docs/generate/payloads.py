"""Describe a method's messages from the declarations of their fields."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any

THINGS = {
    "model": "the client's model",
    "any model": "a slice of the wide model",
    "head": "the head",
    "shared": "the shared small model",
}


@dataclass(frozen=True)
class Message:
    """One direction: the type's name, its meaning, and each field in words."""

    name: str
    meaning: str
    fields: tuple[tuple[str, str], ...]

    @property
    def words(self) -> str:
        """All of it in a line."""
        if not self.fields:
            return "nothing"
        return f"`{self.name}`: " + "; ".join(f"{name} ({kind})" for name, kind in self.fields)


def messages(name: str) -> tuple[Message, Message]:
    """What goes down to a client, and what comes up from it."""
    from potluck.core.method import payload_types
    from potluck.experiment.experiment import make_method
    from potluck.methods import method_class

    down, up = payload_types(make_method(method_class(name), {}))
    return _message(down), _message(up)


def _message(kind: type[Any]) -> Message:
    hints = typing.get_type_hints(kind, include_extras=True)
    meaning = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    return Message(kind.__name__, meaning, tuple((name, _words(hint)) for name, hint in hints.items()))


def _words(hint: Any) -> str:
    """A field's annotation as a reader says it."""
    inner = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    if type(None) in typing.get_args(hint):
        return f"{_words(inner[0])}, or none"
    rules = getattr(hint, "__metadata__", ())
    base = typing.get_origin(hint.__origin__ if rules else hint) or (hint.__origin__ if rules else hint)
    named = {type(rule).__name__: rule for rule in rules}
    if "Like" in named:
        part = " or a part of it" if named["Like"].subset and named["Like"].what == "model" else ""
        return THINGS[named["Like"].what] + part
    if "Labels" in named:
        return "class ids"
    shape = (
        " × ".join("…" if size is ... else str(size) for size in named["Shape"].sizes)
        if "Shape" in named
        else ""
    )
    if "Counts" in named:
        return f"sample counts, {shape}"
    if "Integers" in named:
        return f"whole numbers, {shape}"
    if base is dict:
        return "named tensors"
    return shape or ("a number" if base in (int, float) else "a tensor")
