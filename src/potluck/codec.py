"""Payloads and states as bytes: safetensors for the tensors, JSON for the rest. Never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import safetensors
import safetensors.torch
from torch import Tensor

from potluck.core.payload import Payload, PayloadError
from potluck.core.tree import Flat

Message = TypeVar("Message", bound=Payload)

_HEADER = "potluck"


def encode(payload: Payload) -> bytes:
    """The payload as it travels; a payload without content is no bytes at all."""
    tensors, scalars = payload.flatten()
    if not tensors and not scalars:
        return b""
    return _pack(tensors, scalars)


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
    """How many bytes `encode` writes."""
    return len(encode(payload))


def encode_state(flat: Flat) -> bytes:
    """A server's or client's state as bytes."""
    return _pack(flat.tensors, flat.layout)


def decode_state(data: bytes) -> Flat:
    """The state that `encode_state` wrote."""
    return Flat(*_unpack(data))


def _pack(tensors: Mapping[str, Tensor], rest: Any) -> bytes:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if len({tensor.data_ptr() for tensor in plain.values()}) < len(plain):
        plain = {name: tensor.clone() for name, tensor in plain.items()}  # shared memory cannot be packed
    packed: bytes = safetensors.torch.save(plain, {_HEADER: json.dumps(rest)})
    return packed


def _unpack(data: bytes) -> tuple[dict[str, Tensor], Any]:
    tensors = safetensors.torch.load(data)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return tensors, json.loads(header["__metadata__"][_HEADER])
