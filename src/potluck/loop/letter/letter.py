"""A letter: an envelope of plain facts, and what it encloses, each an image."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from potluck.core.payload import PayloadError
from potluck.core.tree import Flat
from potluck.loop.letter.envelope import mapping, whole
from potluck.loop.letter.image import Buffer, FromMemory, Take, framed, image, reading, take_head, take_image


@dataclass(frozen=True)
class Letter:
    """Plain facts, and what comes with them: `payload` (its layout are the scalars) and `state`."""

    facts: dict[str, Any]
    payload: Flat | None = None
    state: Flat | None = None


def pieces(letter: Letter) -> list[Buffer]:
    """A letter as the buffers that make it up, so that tensors need not be copied to be sent."""
    parts = {"payload": letter.payload, "state": letter.state}
    images = {name: image(flat) for name, flat in parts.items() if flat is not None}
    sizes = {name: sum(len(buffer) for buffer in buffers) for name, buffers in images.items()}
    head = framed({"facts": letter.facts, "enclosed": sizes})
    return [head, *(buffer for buffers in images.values() for buffer in buffers)]


def to_bytes(letter: Letter) -> bytes:
    """A letter in one piece."""
    return b"".join(pieces(letter))


def from_bytes(data: Buffer) -> Letter:
    """The letter in these bytes, all of them; anything else is a `PayloadError`."""
    source = FromMemory(data)
    letter = read(source, source.left)
    if source.left:
        raise PayloadError("The letter could not be read: something follows its end.")
    return letter


def send(to: socket.socket, letter: Letter) -> None:
    """Put a letter on a socket, tensors from their own memory."""
    for buffer in pieces(letter):
        to.sendall(buffer)


def receive(source: socket.socket) -> Letter:
    """The next letter of a socket, tensors into memory of their own; `EOFError` when the other side is gone."""

    def take(target: memoryview) -> None:
        while target:
            try:
                count = source.recv_into(target)
            except BlockingIOError:  # the socket's own patience is over
                raise ConnectionResetError("the other process stands still") from None
            if not count:
                raise ConnectionResetError("the other process is gone")
            target = target[count:]

    return read(take)


def read(take: Take, limit: int = 1 << 62) -> Letter:
    """A letter from wherever its bytes come; `limit` bounds what its tensors may take."""

    def found() -> Letter:
        head, _ = take_head(take)
        facts, sizes = head["facts"], mapping(head["enclosed"], "list of what it encloses")
        if sizes.keys() - {"payload", "state"}:
            raise ValueError("its envelope has another form")
        parts = {name: take_image(take, whole(size, name, limit)) for name, size in sizes.items()}
        return Letter(mapping(facts, "facts"), **parts)

    return reading(found, "The letter")


def section(letter: Letter, name: str) -> dict[str, Any]:
    """A table of the envelope."""
    return mapping(letter.facts.get(name), name)
