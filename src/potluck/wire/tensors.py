"""Named tensors with their layout as a plain safetensors file, in messages and on disk.

Bytes come from other parties: whatever they contain, reading them raises `PayloadError` and nothing else, and allocates
no memory before the stated shapes add up to the stated size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import torch
from torch import Tensor

from potluck.core.files import parse_json
from potluck.core.payload import Payload, PayloadError, Tensors
from potluck.core.tree import Flat
from potluck.wire.header import integer

PayloadT = TypeVar("PayloadT", bound=Payload)
T = TypeVar("T")
Buffer = bytes | memoryview
ReadInto = Callable[[memoryview], None]
"""Fills a piece of memory with the next bytes of a message; raises `EOFError` where they end."""

MAX_HEADER = 64 << 20
"""The most bytes of a header; the longest that Potluck writes has about 100 kB."""

_META = "potluck"
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


def encode_tensors(flat: Flat) -> list[Buffer]:
    """Return the buffers of a safetensors file: its header, then each tensor's own memory.

    The safetensors library would copy each tensor three times instead of at most once, and could not tell the size
    beforehand.
    """
    ordered = _widest_first(flat.tensors)
    return [_tensors_header(flat, ordered), *(as_bytes(t.detach().cpu().contiguous()) for _, t in ordered)]


def encoded_tensors_size(flat: Flat) -> int:
    """Return the size in bytes of `encode_tensors`, without encoding."""
    ordered = _widest_first(flat.tensors)
    return len(_tensors_header(flat, ordered)) + sum(tensor.nbytes for _, tensor in ordered)


def as_bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, to read from or to write into."""
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:  # a single number may have any stride and is contiguous all the same
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8).numpy().data


def _widest_first(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Order tensors by the width of their numbers, so that each is aligned in the file."""
    return sorted(tensors.items(), key=lambda item: -item[1].element_size())


def _tensors_header(flat: Flat, ordered: Sequence[tuple[str, Tensor]]) -> bytes:
    """Encode names, types, shapes and offsets; also the original order, where it differs."""
    meta: dict[str, Any] = {"layout": flat.layout}
    if [name for name, _ in ordered] != list(flat.tensors):
        meta["order"] = list(flat.tensors)  # sums over them depend on it
    header: dict[str, Any] = {"__metadata__": {_META: json.dumps(meta)}}
    offset = 0
    for name, tensor in ordered:
        dtype = _NAMES.get(tensor.dtype)
        if dtype is None:
            raise PayloadError(f"Tensor {name!r} is {tensor.dtype}, which cannot be sent; convert it first.")
        header[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    return frame_header(header)


def frame_header(header: Any) -> bytes:
    """Encode a header: its length in eight bytes, then JSON, padded with spaces to a multiple of 8."""
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_header(read_into: ReadInto) -> tuple[dict[str, Any], int]:
    """Decode a header; also return its size in bytes, its length included."""
    size = bytearray(8)
    read_into(memoryview(size))
    length = int.from_bytes(size, "little")
    if length > MAX_HEADER:
        raise ValueError(f"its header states {length} bytes")
    text = bytearray(length)
    read_into(memoryview(text))
    header = parse_json(text.decode())
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return header, len(size) + length


def decode_tensors(read_into: ReadInto, size: int) -> Flat:
    """Decode `size` bytes that `encode_tensors` made."""
    header, length = read_header(read_into)
    meta = parse_json(header.pop("__metadata__")[_META])
    slots, offset = [], 0
    for name, entry in header.items():
        dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
        end = offset + math.prod(integer(side, name) for side in shape) * dtype.itemsize
        if entry["data_offsets"] != [offset, end] or end > size:
            raise ValueError(f"the offsets of {name!r} contradict its shape")
        slots.append((name, dtype, shape))
        offset = end
    if length + offset != size:
        raise ValueError("its size is not the stated one")
    tensors: Tensors = {}
    for name, dtype, shape in slots:
        tensors[name] = torch.empty(shape, dtype=dtype)
        read_into(as_bytes(tensors[name]))
    return Flat({name: tensors[name] for name in _original_order(meta, tensors)}, meta["layout"])


def _original_order(meta: dict[str, Any], tensors: Tensors) -> Iterable[str]:
    order = meta.get("order", list(tensors))
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(tensors):
        raise ValueError("its order does not list its tensors")
    return order


# -- payloads and states -------------------------------------------------------------------------------------


def flatten_payload(payload: Payload) -> Flat:
    """Return a payload as it is encoded: its tensors, with its scalars as the layout."""
    return Flat(*payload.flatten())


def encode(payload: Payload) -> bytes:
    """Encode a payload; one without content is zero bytes."""
    return b"".join(encode_tensors(flatten_payload(payload))) if encoded_size(payload) else b""


def encoded_size(payload: Payload) -> int:
    """Return the bytes that a payload takes in a message: what `bytes_up` and `bytes_down` count."""
    flat = flatten_payload(payload)
    return encoded_tensors_size(flat) if flat.tensors or flat.layout else 0


def decode(kind: type[PayloadT], data: bytes) -> PayloadT:
    """Decode a payload of a given type; raise `PayloadError` for anything else."""
    return unflatten_payload(kind, decode_state(data) if data else Flat({}, {}))


def unflatten_payload(kind: type[PayloadT], flat: Flat | None) -> PayloadT:
    """Rebuild a payload of the type that the method declares from what a message held."""
    if flat is None:
        raise PayloadError(f"{kind.__name__} is missing.")
    if not isinstance(flat.layout, dict):
        raise PayloadError(f"{kind.__name__} could not be read: its scalars are not an object.")
    for name, value in flat.layout.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PayloadError(f"{kind.__name__}.{name} is not a number.")
    return kind.unflatten(flat.tensors, flat.layout)


def encode_state(flat: Flat) -> bytes:
    """Encode a state."""
    return b"".join(encode_tensors(flat))


def decode_state(data: bytes) -> Flat:
    """Decode the state that `encode_state` wrote; raise `PayloadError` for anything else."""
    return decoding(lambda: decode_tensors(MemoryReader(data), len(data)), "The state")


def decoding(read: Callable[[], T], subject: str) -> T:
    """Return what `read` returns; turn whatever untrusted bytes trigger into a `PayloadError`."""
    try:
        return read()
    except (ConnectionError, PayloadError):
        raise
    except Exception as error:
        raise PayloadError(f"{subject} could not be read: {_reason(error)}.") from None


class MemoryReader:
    """Reads bytes from memory piece by piece; `left` is how many remain."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data)

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return len(self._view)

    def __call__(self, target: memoryview) -> None:
        if len(target) > self.left:
            raise EOFError
        target[:] = self._view[: len(target)]
        self._view = self._view[len(target) :]


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it ends too early"
    return f"{type(error).__name__} {error}"[:200]


def save_state(path: Path, flat: Flat) -> None:
    """Write a state to a file, without a copy of it in memory."""
    with path.open("wb", buffering=0) as file:
        for buffer in encode_tensors(flat):
            view = memoryview(buffer)
            while view:
                view = view[file.write(view) or 0 :]


def load_state(path: Path) -> Flat:
    """Load the state that `save_state` wrote; its tensors are mapped from the file until they are copied."""

    def read() -> Flat:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            meta = parse_json(file.metadata()[_META])
            return Flat({name: tensors[name] for name in _original_order(meta, tensors)}, meta["layout"])

    return decoding(read, f"The state in {str(path)!r}")
