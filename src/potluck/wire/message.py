"""A message: a JSON header, and up to three sets of tensors in safetensors format."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from potluck.core.payload import PayloadError
from potluck.core.tree import Flat
from potluck.wire.header import integer, table
from potluck.wire.tensors import (
    Buffer,
    MemoryReader,
    ReadInto,
    decode_tensors,
    decoding,
    encode_tensors,
    frame_header,
    read_header,
)


@dataclass(frozen=True)
class Message:
    """Plain facts, and the tensors sent with them: `payload` (its layout are the scalars), `state` and `sums`."""

    facts: dict[str, Any]
    payload: Flat | None = None
    state: Flat | None = None
    sums: Flat | None = None
    """What a stage of a secure sum asks or answers."""


def message_buffers(message: Message) -> list[Buffer]:
    """Return the buffers that make up a message, so that tensors need not be copied to be sent."""
    parts = {"payload": message.payload, "state": message.state, "sums": message.sums}
    encoded = {name: encode_tensors(flat) for name, flat in parts.items() if flat is not None}
    sizes = {name: sum(len(buffer) for buffer in buffers) for name, buffers in encoded.items()}
    header = frame_header({"facts": message.facts, "enclosed": sizes})
    return [header, *(buffer for buffers in encoded.values() for buffer in buffers)]


def to_bytes(message: Message) -> bytes:
    """Encode a message."""
    return b"".join(message_buffers(message))


def from_bytes(data: Buffer) -> Message:
    """Decode a message that takes up all of `data`; raise `PayloadError` for anything else."""
    source = MemoryReader(data)
    message = read_message(source, source.left)
    if source.left:
        raise PayloadError("The message could not be read: bytes follow its end.")
    return message


def send(to: socket.socket, message: Message) -> None:
    """Write a message to a socket, tensors directly from their memory."""
    for buffer in message_buffers(message):
        to.sendall(buffer)


def receive(source: socket.socket) -> Message:
    """Read the next message of a socket; `ConnectionResetError` when the other side is gone or sends nothing."""

    def read_into(target: memoryview) -> None:
        while target:
            try:
                count = source.recv_into(target)
            except BlockingIOError:  # the socket's own timeout
                raise ConnectionResetError("the other process stands still") from None
            if not count:
                raise ConnectionResetError("the other process is gone")
            target = target[count:]

    return read_message(read_into)


def read_message(read_into: ReadInto, limit: int = 1 << 62) -> Message:
    """Decode a message from any source of bytes; its tensors may state at most `limit` bytes."""

    def decoded() -> Message:
        header, _ = read_header(read_into)
        facts, sizes = header["facts"], table(header["enclosed"], "list of its parts")
        if sizes.keys() - {"payload", "state", "sums"}:
            raise ValueError("its header has unknown parts")
        parts = {name: decode_tensors(read_into, integer(size, name, limit)) for name, size in sizes.items()}
        return Message(table(facts, "facts"), **parts)

    return decoding(decoded, "The message")


def section(message: Message, name: str) -> dict[str, Any]:
    """Return an object of the header's facts."""
    return table(message.facts.get(name), name)
