"""Images: named tensors and their layout as a plain safetensors file. Payloads and states travel and lie on disk so."""

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
from potluck.loop.letter.envelope import whole

Message = TypeVar("Message", bound=Payload)
Found = TypeVar("Found")
Buffer = bytes | memoryview
Take = Callable[[memoryview], None]
"""Fills a piece of memory with the next bytes of a letter; `EOFError` where they end."""

MAX_HEAD = 64 << 20
"""Bytes of an envelope or of an image's list of tensors; the longest of ours has some 100 kB."""

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


def image(flat: Flat) -> list[Buffer]:
    """A safetensors file as the buffers that make it up: its head, then each tensor's own memory.

    Written here rather than by the library because it costs one copy instead of three, and because the size of a
    message is then known without making it.
    """
    ordered = _in_order(flat.tensors)
    return [_image_head(flat, ordered), *(as_bytes(t.detach().cpu().contiguous()) for _, t in ordered)]


def image_size(flat: Flat) -> int:
    """How many bytes the image has, counted without making it."""
    ordered = _in_order(flat.tensors)
    return len(_image_head(flat, ordered)) + sum(tensor.nbytes for _, tensor in ordered)


def as_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, to read from or to write into."""
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:  # a single number may have any stride and is contiguous all the same
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8).numpy().data


def _in_order(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Wide numbers first, so that every tensor lies aligned in the file."""
    return sorted(tensors.items(), key=lambda item: -item[1].element_size())


def _image_head(flat: Flat, ordered: Sequence[tuple[str, Tensor]]) -> bytes:
    """Names, types, shapes and places; the order in which the tensors were given, where that is another."""
    meta: dict[str, Any] = {"layout": flat.layout}
    if [name for name, _ in ordered] != list(flat.tensors):
        meta["order"] = list(flat.tensors)  # sums over them depend on it
    head: dict[str, Any] = {"__metadata__": {_META: json.dumps(meta)}}
    place = 0
    for name, tensor in ordered:
        kind = _NAMES.get(tensor.dtype)
        if kind is None:
            raise PayloadError(f"Tensor {name!r} is {tensor.dtype}, which cannot be sent; convert it first.")
        head[name] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.nbytes],
        }
        place += tensor.nbytes
    return framed(head)


def framed(head: Any) -> bytes:
    """Eight bytes of length, then the text, filled up with spaces to a multiple of 8."""
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def take_head(take: Take) -> tuple[dict[str, Any], int]:
    """A head, and how many bytes it has with its length."""
    size = bytearray(8)
    take(memoryview(size))
    length = int.from_bytes(size, "little")
    if length > MAX_HEAD:
        raise ValueError(f"its head claims {length} bytes")
    text = bytearray(length)
    take(memoryview(text))
    head = parse_json(text.decode())
    if not isinstance(head, dict):
        raise ValueError("its head is no object")
    return head, len(size) + length


def take_image(take: Take, size: int) -> Flat:
    """An image of so many bytes. Nothing is allocated before the claimed shapes are seen to add up to them."""
    head, length = take_head(take)
    meta = parse_json(head.pop("__metadata__")[_META])
    slots, place = [], 0
    for name, entry in head.items():
        dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
        end = place + math.prod(whole(side, name) for side in shape) * dtype.itemsize
        if entry["data_offsets"] != [place, end] or end > size:
            raise ValueError(f"{name!r} is not where its shape says")
        slots.append((name, dtype, shape))
        place = end
    if length + place != size:
        raise ValueError("its size is not what it claims")
    tensors: Tensors = {}
    for name, dtype, shape in slots:
        tensors[name] = torch.empty(shape, dtype=dtype)
        take(as_bytes(tensors[name]))
    order = meta.get("order", list(tensors))
    return Flat({name: tensors[name] for name in _permutation(order, tensors)}, meta["layout"])


def _permutation(order: Any, tensors: Tensors) -> Iterable[str]:
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(tensors):
        raise ValueError("it does not list the tensors that it holds")
    return order


# -- payloads and states alone


def enclosed(payload: Payload) -> Flat:
    """What a letter holds of a payload: its tensors, its scalars as the layout."""
    return Flat(*payload.flatten())


def encode(payload: Payload) -> bytes:
    """The payload's image as it travels; a payload without content is no bytes at all."""
    return b"".join(image(enclosed(payload))) if encoded_size(payload) else b""


def encoded_size(payload: Payload) -> int:
    """How many bytes of a letter a payload is; one without content is none."""
    flat = enclosed(payload)
    return image_size(flat) if flat.tensors or flat.layout else 0


def decode(kind: type[Message], data: bytes) -> Message:
    """The payload of a known type in these bytes; anything that is not one is refused."""
    return opened(kind, decode_state(data) if data else Flat({}, {}))


def opened(kind: type[Message], flat: Flat | None) -> Message:
    """A payload of the type that the method declares, out of what a letter enclosed."""
    if flat is None:
        raise PayloadError(f"{kind.__name__} is missing.")
    if not isinstance(flat.layout, dict):
        raise PayloadError(f"{kind.__name__} could not be read: its numbers are not named.")
    for name, value in flat.layout.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PayloadError(f"{kind.__name__}.{name} is no number.")
    return kind.unflatten(flat.tensors, flat.layout)


def encode_state(flat: Flat) -> bytes:
    """A state's image in one piece."""
    return b"".join(image(flat))


def decode_state(data: bytes) -> Flat:
    """The state that `encode_state` wrote; anything else is a `PayloadError`."""
    return reading(lambda: take_image(FromMemory(data), len(data)), "The image")


def reading(read: Callable[[], Found], what: str) -> Found:
    """What `read` gives. A stranger's bytes: whatever they trigger, they are refused."""
    try:
        return read()
    except (ConnectionError, PayloadError):
        raise
    except Exception as error:
        raise PayloadError(f"{what} could not be read: {_reason(error)}.") from None


class FromMemory:
    """Takes piece by piece what lies in memory; `left` says how much of it is left."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data)

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
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
    """Write a state's image to a file, without a copy of it in memory."""
    with path.open("wb", buffering=0) as file:
        for buffer in image(flat):
            view = memoryview(buffer)
            while view:
                view = view[file.write(view) or 0 :]


def load_state(path: Path) -> Flat:
    """The state that `save_state` wrote; its tensors are mapped from the file until they are copied."""

    def read() -> Flat:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            meta = parse_json(file.metadata()[_META])
            order = _permutation(meta.get("order", list(tensors)), tensors)
            return Flat({name: tensors[name] for name in order}, meta["layout"])

    return reading(read, f"The state in {str(path)!r}")
