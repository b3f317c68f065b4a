"""Nested state (tensors, modules, dicts, lists, dataclasses, numbers) to flat tensors plus JSON, and back.

Server states and client states are saved this way: nothing a reader would have to execute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core.errors import PotluckError


@dataclass(frozen=True)
class Flat:
    """Tensors under plain names, and a JSON-ready layout that says where each belongs."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    layout: Any = None


def flatten(value: Any, *, copy: bool = True) -> Flat:
    """Flatten a state. Tensors are detached copies.

    With `copy=False` they are the live ones: for writing or measuring them immediately.
    """
    tensors: dict[str, Tensor] = {}
    layout = _describe(value, "", tensors)
    return Flat({name: tensor.clone() for name, tensor in tensors.items()} if copy else tensors, layout)


def size(flat: Flat) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.nbytes for tensor in flat.tensors.values())


def equal(first: Flat, second: Flat) -> bool:
    """Return whether two flat states are equal bit by bit."""
    return (
        first.layout == second.layout
        and first.tensors.keys() == second.tensors.keys()
        and all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
    )


def _describe(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, Tensor):
        name = _free_name(path or "tensor", tensors)
        tensors[name] = value.detach()
        if value.is_contiguous():
            return {"tensor": name}
        # The order of dimensions in memory can decide the last bit of a product: it comes back as it was.
        return {"strided": [name, list(torch.empty_like(value, device="meta").stride())]}
    if isinstance(value, nn.Module):
        return {"module": _describe(dict(value.state_dict()), path, tensors)}
    if isinstance(value, Mapping):
        _check_mapping(value, path)
        items = [[key, _describe(entry, f"{path}/{key}", tensors)] for key, entry in value.items()]
        return {"dict": items}
    if isinstance(value, list | tuple):
        items = [_describe(entry, f"{path}/{number}", tensors) for number, entry in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if dataclasses.is_dataclass(value):
        return {
            "fields": {
                entry.name: _describe(getattr(value, entry.name), f"{path}/{entry.name}", tensors)
                for entry in dataclasses.fields(value)
            }
        }
    raise TypeError(f"state at {path or 'the top'!r} is a {type(value).__name__}, which cannot be saved")


def _free_name(name: str, taken: Mapping[str, Tensor]) -> str:
    """Return the name, with a number if taken: `{"a": {"b": x}, "a/b": y}` and `{1: x, "1": y}` are two names."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}#{number}", number + 1
    return free


def _check_mapping(value: Mapping[Any, Any], path: str) -> None:
    """Raise for a mapping that JSON would not restore unchanged."""
    where = f"state at {path or 'the top'!r}"
    if hasattr(value, "__missing__"):
        raise TypeError(
            f"{where} is a {type(value).__name__}, which would come back as a plain dict; use a dict"
        )
    for key in value:
        if key is not None and not isinstance(key, str | bool | int | float):
            raise TypeError(
                f"{where} has the key {key!r} ({type(key).__name__}), which cannot be saved; use text or numbers"
            )


def unrestorable_parts(value: Any, path: str = "") -> Iterator[tuple[str, type]]:
    """Yield path and type of parts that only code can make: modules, dataclasses, named tuples."""
    if isinstance(value, nn.Module):
        yield path, type(value)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from unrestorable_parts(entry, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        if type(value) not in (list, tuple):
            yield path, type(value)
        for number, entry in enumerate(value):
            yield from unrestorable_parts(entry, f"{path}[{number}]")
    elif dataclasses.is_dataclass(value):
        yield path, type(value)
        for part in dataclasses.fields(value):
            yield from unrestorable_parts(getattr(value, part.name), f"{path}.{part.name}")


def check_restorable(private: Mapping[str, Any]) -> None:
    """Raise for the first value of a client's `private` that a checkpoint cannot restore, with the remedy."""
    for path, kind in unrestorable_parts(private):
        remedy = "keep its fields in a dict"
        if issubclass(kind, nn.Module):
            remedy = "use me.module(name, build), which keeps modules"
        raise PotluckError(
            f"me.private{path} is a {kind.__name__}, which a checkpoint cannot restore; {remedy}."
        )


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield every tensor of a state, without copying."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.state_dict().values()
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from tensors_in(entry)
    elif dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            yield from tensors_in(getattr(value, part.name))


def is_finite(value: Any) -> bool:
    """Return whether all tensors of a state are finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors_in(value))


def unflatten(flat: Flat, like: Any = None) -> Any:
    """Rebuild a state. Modules and dataclasses are taken from `like`, a fresh state of the same making."""
    return _build(flat.layout, flat.tensors, like)


def _build(layout: Any, tensors: Mapping[str, Tensor], like: Any) -> Any:
    ((kind, content),) = layout.items()
    if kind == "value":
        return content
    if kind == "tensor":
        return tensors[content].clone(memory_format=torch.contiguous_format)
    if kind == "strided":
        tensor = tensors[content[0]]
        return tensor.new_empty_strided(tensor.shape, content[1]).copy_(tensor)
    if kind == "dict":
        peer = like if isinstance(like, Mapping) else {}
        return {key: _build(entry, tensors, peer.get(key)) for key, entry in content}
    if kind in ("list", "tuple"):
        peers = like if isinstance(like, list | tuple) else ()
        entries = [
            _build(entry, tensors, peers[number] if number < len(peers) else None)
            for number, entry in enumerate(content)
        ]
        if type(like) not in (list, tuple) and len(peers) == len(entries) and hasattr(like, "_make"):
            return like._make(entries)
        return entries if kind == "list" else tuple(entries)
    if kind == "module":
        state = _build(content, tensors, None)
        if isinstance(like, nn.Module):
            like.load_state_dict(state)
            return like
        return state
    if not dataclasses.is_dataclass(like) or isinstance(like, type):
        raise TypeError(f"a dataclass with the fields {', '.join(content)} is not there in a fresh state")
    values = {name: _build(entry, tensors, getattr(like, name, None)) for name, entry in content.items()}
    later = {entry.name for entry in dataclasses.fields(like) if not entry.init}
    instance = type(like)(**{name: value for name, value in values.items() if name not in later})
    for name in later & values.keys():
        object.__setattr__(instance, name, values[name])
    return instance
