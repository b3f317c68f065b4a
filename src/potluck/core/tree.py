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


@dataclass(frozen=True)
class Flat:
    """Tensors under plain names, and a JSON-ready layout that says where each belongs."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    layout: Any = None


def flatten(value: Any, *, copy: bool = True) -> Flat:
    """Take a state apart. Tensors are detached copies, so the result never changes under the reader.

    With `copy=False` they are the live ones: for whoever writes or measures them at once.
    """
    tensors: dict[str, Tensor] = {}
    layout = _describe(value, "", tensors)
    return Flat({name: tensor.clone() for name, tensor in tensors.items()} if copy else tensors, layout)


def size(flat: Flat) -> int:
    """Bytes of all tensors."""
    return sum(tensor.nbytes for tensor in flat.tensors.values())


def _describe(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, Tensor):
        name = path or "tensor"
        tensors[name] = value.detach()
        if value.is_contiguous():
            return {"tensor": name}
        # The order of dimensions in memory can decide the last bit of a product: it comes back as it was.
        return {"strided": [name, list(torch.empty_like(value, device="meta").stride())]}
    if isinstance(value, nn.Module):
        return {"module": _describe(dict(value.state_dict()), path, tensors)}
    if isinstance(value, Mapping):
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


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor of a state, where it is; nothing is copied."""
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
    """Whether no tensor of a state holds infinity or not-a-number."""
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
        known = like if isinstance(like, Mapping) else {}
        return {key: _build(entry, tensors, known.get(key)) for key, entry in content}
    if kind in ("list", "tuple"):
        peers = like if isinstance(like, list | tuple) else ()
        entries = [
            _build(entry, tensors, peers[number] if number < len(peers) else None)
            for number, entry in enumerate(content)
        ]
        return entries if kind == "list" else tuple(entries)
    if kind == "module":
        state = _build(content, tensors, None)
        if isinstance(like, nn.Module):
            like.load_state_dict(state)
            return like
        return state
    values = {name: _build(entry, tensors, getattr(like, name, None)) for name, entry in content.items()}
    return type(like)(**values)
