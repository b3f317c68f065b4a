"""Payloads: the content of messages between server and clients, as frozen dataclasses."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from potluck.core.errors import PotluckError

if TYPE_CHECKING:
    from potluck.core.task import ClientInfo, Task

Tensors = dict[str, Tensor]
Scalar = int | float


class PayloadError(PotluckError):
    """A message that does not have the form its type declares."""


@dataclass(frozen=True)
class Payload:
    """Base of every message. A field is a tensor, a dict of tensors, a number, or any of these or None.

    A payload knows how to flatten itself for a wire or a disk, how to come back, and how much it holds;
    its size is counted from its content. `potluck.core.schema` says what else a field may declare.
    """

    def flatten(self) -> tuple[Tensors, dict[str, Scalar]]:
        """Return tensors and numbers under plain names; entry `k` of dict field `f` is called `f.k`."""
        tensors: Tensors = {}
        scalars: dict[str, Scalar] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                tensors[field.name] = value
            elif isinstance(value, Mapping):
                tensors.update({f"{field.name}.{key}": entry for key, entry in value.items()})
            elif value is not None:
                scalars[field.name] = value
        return tensors, scalars

    @classmethod
    def unflatten(cls, tensors: Mapping[str, Tensor], scalars: Mapping[str, Scalar]) -> Self:
        """Rebuild the payload that `flatten` took apart; raise for missing or surplus entries."""
        values: dict[str, Any] = {}
        used: set[str] = set()
        for name, kind in field_kinds(cls).items():
            if kind.base is dict:
                prefix = f"{name}."
                entries = {
                    key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)
                }
                used.update(prefix + key for key in entries)
                values[name] = entries if entries or not kind.optional else None
            elif name in (source := tensors if kind.base is Tensor else scalars):
                used.add(name)
                values[name] = kind.convert(source[name])
            elif kind.optional:
                values[name] = None
            else:
                raise PayloadError(f"{cls.__name__} lacks its field {name!r}.")
        if surplus := sorted((set(tensors) | set(scalars)) - used):
            raise PayloadError(f"{cls.__name__} has no field {surplus[0]!r}.")
        return cls(**values)

    def numel(self) -> int:
        """Return how many numbers travel: every tensor entry and every scalar counts one."""
        tensors, scalars = self.flatten()
        return sum(tensor.numel() for tensor in tensors.values()) + len(scalars)

    def check(self, task: Task, client: ClientInfo) -> None:
        """Raise `PayloadError` for what no annotation of a field can express; nothing by default."""

    def copy(self) -> Self:
        """Return a payload that shares no memory and no graph with models or server state."""
        return self.map(lambda tensor: tensor.detach().clone(memory_format=torch.contiguous_format))

    def to(self, device: torch.device) -> Self:
        """Return the payload with its tensors on `device`; the same object where they are there already."""
        if all(tensor.device == device for tensor in self.flatten()[0].values()):
            return self
        return self.map(lambda tensor: tensor.to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the payload with `change` applied to every tensor."""
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                value = change(value)
            elif isinstance(value, Mapping):
                value = {key: change(entry) for key, entry in value.items()}
            values[field.name] = value
        return type(self)(**values)


@dataclass(frozen=True)
class EmptyPayload(Payload):
    """The empty message: methods that send nothing in a direction use it."""


@dataclass(frozen=True)
class FieldKind:
    """The declared form of one field: its base type, whether it may be None, and its annotations."""

    base: type
    optional: bool
    rules: tuple[Any, ...]

    def convert(self, value: Any) -> Any:
        """Return a scalar as the declared type; a tensor as it is."""
        if self.base is Tensor:
            return value
        try:
            number = self.base(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None or (self.base is int and number != value):
            raise PayloadError(f"A field declared as {self.base.__name__} cannot hold {value!r}.")
        return number


def field_kinds(cls: type[Payload]) -> dict[str, FieldKind]:
    """Return the declared kind of each field of a payload class."""
    if cls not in _KINDS:
        _KINDS[cls] = _read_kinds(cls)
    return _KINDS[cls]


_KINDS: dict[type[Payload], dict[str, FieldKind]] = {}


def _read_kinds(cls: type[Payload]) -> dict[str, FieldKind]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: _kind(cls, field.name, hints[field.name]) for field in fields(cls)}


def _kind(cls: type, name: str, hint: Any) -> FieldKind:
    rules: tuple[Any, ...] = ()
    optional = False
    # `Annotated` may stand outside or inside of `| None`: peel both, in whatever order they come.
    while True:
        if hasattr(hint, "__metadata__"):
            rules, hint = (*rules, *hint.__metadata__), hint.__origin__
        elif isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            members = [member for member in typing.get_args(hint) if member is not type(None)]
            optional, hint = True, members[0]
        else:
            break
    base = typing.get_origin(hint) or hint
    if base not in (Tensor, dict, int, float):
        raise TypeError(
            f"{cls.__name__}.{name}: a payload field is a Tensor, Tensors, int or float, not {hint}."
        )
    return FieldKind(base, optional, rules)
