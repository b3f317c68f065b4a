"""Payloads and states as bytes: safetensors for the tensors, JSON for the rest. Never pickle.

Writing is done here rather than by the safetensors library because it costs one copy instead of three, and
because the size of a message is then known without making it. Bytes from others are read by the library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from potluck.core.payload import Payload, PayloadError
from potluck.core.tree import Flat

Message = TypeVar("Message", bound=Payload)
Buffer = bytes | memoryview

_HEADER = "potluck"
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def encode(payload: Payload) -> bytes:
    """The payload as it travels; a payload without content is no bytes at all."""
    tensors, scalars = payload.flatten()
    if not tensors and not scalars:
        return b""
    return b"".join(parts(tensors, scalars))


def decode(kind: type[Message], data: bytes) -> Message:
    """The payload of a known type; anything that is not one is refused."""
    if not data:
        return kind.unflatten({}, {})
    try:
        tensors, scalars = _unpack(data)
    except Exception as error:  # a stranger's bytes: whatever they trigger in the readers, they are refused
        raise PayloadError(f"{kind.__name__} could not be read: {error}.") from None
    if not isinstance(scalars, dict):
        raise PayloadError(f"{kind.__name__} could not be read: its numbers are not named.")
    for name, value in scalars.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PayloadError(f"{kind.__name__}.{name} is no number.")
    return kind.unflatten(tensors, scalars)


def encoded_size(payload: Payload) -> int:
    """How many bytes `encode` writes, counted without writing them."""
    tensors, scalars = payload.flatten()
    if not tensors and not scalars:
        return 0
    ordered = _in_order(tensors)
    return len(_head(ordered, scalars)) + sum(tensor.nbytes for _, tensor in ordered)


def encode_state(flat: Flat) -> bytes:
    """A server's or client's state as bytes."""
    return b"".join(parts(flat.tensors, flat.layout))


def decode_state(data: bytes) -> Flat:
    """The state that `encode_state` wrote."""
    return Flat(*_unpack(data))


def save_state(path: Path, flat: Flat) -> None:
    """Write a state to a file, without a copy of it in memory."""
    with path.open("wb", buffering=0) as file:
        for buffer in parts(flat.tensors, flat.layout):
            view = memoryview(buffer)
            while view:
                view = view[file.write(view) or 0 :]


def load_state(path: Path) -> Flat:
    """The state that `save_state` wrote; its tensors are mapped from the file until they are copied."""
    with safetensors.safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        return Flat(tensors, json.loads(file.metadata()[_HEADER]))


# -- the format ---------------------------------------------------------------------------------------------


def parts(tensors: Mapping[str, Tensor], rest: Any) -> list[Buffer]:
    """A safetensors file as the buffers that make it up: the head, then each tensor's own memory."""
    ordered = _in_order(tensors)
    return [_head(ordered, rest), *(as_bytes(tensor.detach().cpu().contiguous()) for _, tensor in ordered)]


def as_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, to read from or to write into."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _in_order(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Wide numbers first, so that every tensor lies aligned in the file."""
    return sorted(tensors.items(), key=lambda item: -item[1].element_size())


def _head(tensors: Sequence[tuple[str, Tensor]], rest: Any) -> bytes:
    """Eight bytes of length, then names, types, shapes and places, filled up with spaces to a multiple of 8."""
    head: dict[str, Any] = {"__metadata__": {_HEADER: json.dumps(rest)}}
    place = 0
    for name, tensor in tensors:
        end = place + tensor.nbytes
        kind = _NAMES.get(tensor.dtype)
        if kind is None:
            raise PayloadError(f"Tensor {name!r} is {tensor.dtype}, which cannot be sent; convert it first.")
        head[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True)
class Slot:
    """Where a tensor of a file belongs: its name and an empty tensor of its type and shape."""

    name: str
    tensor: Tensor


def read_head(text: bytes) -> tuple[list[Slot], Any]:
    """The tensors that follow a head (without its length), in their order, and the rest. For our own writing."""
    head = json.loads(text)
    rest = json.loads(head.pop("__metadata__")[_HEADER])
    return [
        Slot(name, torch.empty(entry["shape"], dtype=_DTYPES[entry["dtype"]])) for name, entry in head.items()
    ], rest


def _unpack(data: bytes) -> tuple[dict[str, Tensor], Any]:
    # Copies lie aligned as torch's own tensors do: some sums depend on that in the last bit.
    tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load(data).items()}
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return tensors, json.loads(header["__metadata__"][_HEADER])
