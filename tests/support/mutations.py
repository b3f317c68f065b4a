"""Payload mutations: each takes a payload and a random generator and returns a damaged payload."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from potluck import wire as codec
from potluck.core.payload import Payload

NUMBERS = (float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 1e9, -1e9, 1e8, -1.0, 0.0, 1e-300)
WHOLE = (-1, 0, 1, 2, 3, 10**6, 2**31, -(2**63), 2**63 - 1)
ODD: tuple[Any, ...] = (
    None, "x", b"x", [], {}, (), True, float("nan"), -1, 10**400, -(10**400), 1.5, object(), {"a": 1},
    {1: torch.zeros(1)}, torch.tensor(1.0), torch.zeros(0), torch.zeros(3, 3), torch.ones(2, dtype=torch.int64),
)  # fmt: skip
DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip


def spoil(payload: Payload, rng: Random) -> Any:
    """One to three mutations in a row, or bytes on the wire changed; may raise `PayloadError` from the codec."""
    if rng.random() < 0.2:
        return codec.decode(type(payload), _spoil_bytes(codec.encode(payload), rng))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        payload = rng.choice(_MUTATIONS)(payload, rng)
    return payload


def _on_a_tensor(change: Callable[[Tensor, Random], Any]) -> Callable[[Payload, Random], Payload]:
    """A mutation of one tensor, wherever in the payload it stands."""

    def mutation(payload: Payload, rng: Random) -> Payload:
        places = [
            (field.name, key)
            for field in fields(payload)
            for value in [getattr(payload, field.name)]
            for key in ([None] if isinstance(value, Tensor) else value if isinstance(value, dict) else [])
        ]
        if not places:
            return payload
        name, key = rng.choice(places)
        value = getattr(payload, name)
        if key is None:
            return replace(payload, **{name: change(value, rng)})
        if not isinstance(value[key], Tensor):
            return payload
        return replace(payload, **{name: {**value, key: change(value[key], rng)}})

    return mutation


def _plain(change: Callable[[Tensor, Random], Any]) -> Callable[[Tensor, Random], Any]:
    """Leave tensors alone that an earlier mutation made unusable for this one."""

    def careful(tensor: Tensor, rng: Random) -> Any:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            return tensor
        return change(tensor.detach(), rng) if tensor.numel() < 10**6 else tensor

    return careful


@_plain
def _value(tensor: Tensor, rng: Random) -> Tensor:
    if not tensor.numel():
        return tensor
    spoiled = tensor.clone().flatten()
    if tensor.dtype == torch.int64:
        spoiled[rng.randrange(len(spoiled))] = rng.choice(WHOLE)
    elif tensor.dtype in (torch.float32, torch.float64):
        spoiled[rng.randrange(len(spoiled))] = rng.choice(NUMBERS)
    return spoiled.reshape(tensor.shape)


@_plain
def _all_values(tensor: Tensor, rng: Random) -> Tensor:
    if tensor.dtype not in (torch.float32, torch.float64):
        return tensor
    return (
        torch.full_like(tensor, rng.choice(NUMBERS)) if rng.random() < 0.5 else tensor * rng.choice(NUMBERS)
    )


@_plain
def _copy_an_entry(tensor: Tensor, rng: Random) -> Tensor:
    """A class named twice, a row sent twice."""
    if not tensor.dim() or not len(tensor):
        return tensor
    spoiled = tensor.clone()
    spoiled[rng.randrange(len(tensor))] = tensor[rng.randrange(len(tensor))]
    return spoiled


@_plain
def _dtype(tensor: Tensor, rng: Random) -> Tensor:
    return tensor.to(rng.choice(DTYPES))


@_plain
def _shape(tensor: Tensor, rng: Random) -> Tensor:
    changes: list[Callable[[], Tensor]] = [
        lambda: tensor.flatten(),
        lambda: tensor.unsqueeze(0),
        lambda: tensor.unsqueeze(-1),
        lambda: tensor.sum(),
        lambda: tensor[:0] if tensor.dim() else tensor,
        lambda: tensor[1:] if tensor.dim() else tensor,
        lambda: torch.cat([tensor, tensor[:1]]) if tensor.dim() else tensor,
        lambda: tensor.transpose(0, -1) if tensor.dim() else tensor,
        lambda: tensor.new_zeros(()).expand(10**6, 10**6),
        lambda: tensor.new_zeros(()).expand([rng.choice((0, 1, 2, 5)) for _ in range(rng.randrange(5))]),
    ]
    return rng.choice(changes)()


@_plain
def _kind(tensor: Tensor, rng: Random) -> Any:
    """Sparse, quantised, on no device, with a gradient, strided oddly, or no tensor at all."""
    real = tensor.is_floating_point() and tensor.dtype in (torch.float32, torch.float64)
    changes: list[Callable[[], Any]] = [
        lambda: tensor.to_sparse() if real and tensor.dim() else tensor,
        lambda: torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.quint8) if real else tensor,
        lambda: tensor.to("meta"),
        lambda: tensor.clone().requires_grad_() if real else tensor,
        lambda: torch.stack([tensor, tensor], -1)[..., 0],
        lambda: torch.nn.Parameter(tensor, requires_grad=False),
        lambda: torch.nn.Buffer(tensor),
        lambda: tensor.tolist(),
        lambda: tensor.numpy() if real else None,
    ]
    return rng.choice(changes)()


def _field(payload: Payload, rng: Random) -> Payload:
    """A whole field replaced."""
    names = [field.name for field in fields(payload)]
    return replace(payload, **{rng.choice(names): rng.choice(ODD)}) if names else payload


def _names(payload: Payload, rng: Random) -> Payload:
    """Names of a dict dropped, added, changed or exchanged."""
    places = [f.name for f in fields(payload) if isinstance(getattr(payload, f.name), dict)]
    if not places:
        return payload
    name = rng.choice(places)
    entries = dict(getattr(payload, name))
    mutation = rng.randrange(4)
    if mutation == 0 and entries:
        entries.pop(rng.choice(list(entries)))
    elif mutation == 1:
        entries[rng.choice(("", "x", "head.weight", "__class__", "a.b.c", "\0", 7))] = torch.zeros(2)
    elif mutation == 2 and entries:
        entries["other"] = entries.pop(rng.choice(list(entries)))
    elif len(entries) > 1:
        first_name, second_name = rng.sample(list(entries), 2)
        entries[first_name], entries[second_name] = entries[second_name], entries[first_name]
    return replace(payload, **{name: entries})


def _rows(payload: Payload, rng: Random) -> Payload:
    """The same rows of every tensor field left out, repeated or put in another order."""
    values = {f.name: getattr(payload, f.name) for f in fields(payload)}
    tensors = {
        n: v for n, v in values.items() if isinstance(v, Tensor) and v.dim() and v.device.type == "cpu"
    }
    count = min((len(value) for value in tensors.values()), default=0)
    if not count or any(value.layout is not torch.strided for value in tensors.values()):
        return payload
    pick = [[], list(range(count))[::-1], [rng.randrange(count)], [rng.randrange(count) for _ in range(5)]]
    rows = torch.tensor(rng.choice(pick), dtype=torch.int64)
    return replace(payload, **{name: value.detach()[rows] for name, value in tensors.items()})


def _class(payload: Payload, rng: Random) -> Payload:
    """An object of another type with the same fields."""
    renamed = type(type(payload).__name__, (type(payload),), {})
    return renamed(**{field.name: getattr(payload, field.name) for field in fields(payload)})


_MUTATIONS: tuple[Callable[[Payload, Random], Payload], ...] = (
    *(_on_a_tensor(change) for change in (_value, _value, _all_values, _copy_an_entry, _dtype, _shape, _kind)),
    _on_a_tensor(_value), _on_a_tensor(_copy_an_entry), _field, _names, _names, _rows, _rows, _class,
)  # fmt: skip


def _spoil_bytes(data: bytes, rng: Random) -> bytes:
    """Bytes flipped, cut, repeated; or the header rewritten."""
    if rng.random() < 0.4 and len(data) > 8:
        return _spoil_header(data, rng)
    spoiled = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        where = rng.randrange(len(spoiled) + 1)
        mutation = rng.randrange(4)
        if mutation == 0 and where < len(spoiled):
            spoiled[where] = rng.randrange(256)
        elif mutation == 1:
            del spoiled[where : where + rng.choice((1, 8, 1000))]
        elif mutation == 2:
            spoiled[where:where] = rng.randbytes(rng.choice((1, 8, 40)))
        else:
            spoiled[where : where + 8] = b"\xff" * 8
    return bytes(spoiled)


def _spoil_header(data: bytes, rng: Random) -> bytes:
    """A safetensors header that reads well and says something else."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = rng.choice(list(header))
    mutation = rng.randrange(6)
    if mutation == 0:
        header["__metadata__"] = {"potluck": rng.choice(("", "[", "[]", "null", "[" * 9000, '{"x": 1e999}'))}
    elif mutation == 1:
        header["__metadata__"] = {
            "potluck": json.dumps({f"f{rng.randrange(3)}": rng.choice((1, "a", None, [1]))})
        }
    elif mutation == 2:
        header.pop(name)
    elif mutation == 3:
        header[name + rng.choice((".x", "x", ""))] = header.pop(name)
    elif name != "__metadata__":
        key, value = rng.choice(
            (("dtype", "F16"), ("dtype", "BF16"), ("dtype", "U8"), ("dtype", "C64"), ("dtype", "F4"),
             ("shape", [-1]), ("shape", []), ("shape", [2**62, 4]), ("data_offsets", [0, 0]), ("shape", [1.5]))
        )  # fmt: skip
        header[name] = {**header[name], key: value}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]
