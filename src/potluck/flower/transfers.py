"""Fetch replies piece by piece, so that one node's unfinished upload delays no other answer.

A node first announces a reply, then uploads its pieces. Flower's own grid waits inside one call until all pieces of a
reply are there. Here every call takes what the server has and returns, and each reply has its own clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from flwr.app import Message
from google.protobuf.message import DecodeError

from potluck.flower.content import SMALL
from potluck.flower.grid import RetryingGrid

PARSE_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    ArithmeticError,
    DecodeError,
)
"""What Flower's reader raises at malformed content; trouble of the connection is none of these."""
SMALL_PIECES = 3
"""Pieces of a reply of at most `SMALL` bytes."""
CHUNK = 5 << 20
"""Largest piece of a longer reply: a chunk of a Flower array."""
PIECES_PER_POLL = 16
"""Pieces of one reply that are fetched before another reply has its turn."""
MAX_PIECES = 1 << 16
"""Pieces of one reply; more than any message of `schedule.max_payload_mb` has."""
OVERHEAD = 1 << 20
"""Bytes of a reply beside the message in it."""
MAX_GAP = 5.0
"""Seconds between two polls that count against a node; the rest is this process being stopped, or the server away."""


@dataclass(frozen=True)
class UploadLimits:
    """What a node's upload must achieve: seconds before the rate counts, and bytes per second (0: no limit)."""

    grace: float = 30.0
    rate: float = 50e3

    def seconds(self, received: int, next_piece: int) -> float:
        """Return the seconds in which the next piece must have come, after `received` bytes."""
        return self.grace + (received + next_piece) / self.rate if self.rate else float("inf")


@dataclass(frozen=True)
class NoReply:
    """Why there is no reply: it is not readable, or its upload stopped or was given up."""

    reason: str
    kind: Literal["invalid", "lost"] = "invalid"


UNREADABLE = NoReply("the answer could not be read")


@dataclass(frozen=True)
class Head:
    """An announced reply: the message that it answers, its own id, and its pieces."""

    number: str
    message_id: str = ""
    pieces: tuple[str, ...] = ()
    whole: Message | None = None


class PieceLost(Exception):
    """The server no longer expects this piece: the upload was given up."""


class Source(Protocol):
    """Where replies come from; no call waits for a node."""

    def heads(self, numbers: Sequence[str]) -> Iterator[Head | tuple[str, NoReply]]:
        """Return the replies that were announced since."""

    def piece(self, name: str) -> bytes | None:
        """Return a piece; None if it has not arrived."""

    def message(self, head: Head, pieces: dict[str, bytes]) -> Message:
        """Put a reply together and tell the server that it was received."""


class WholeReplies:
    """Replies of a grid without pieces: the simulation's, or one in this process."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def heads(self, numbers: Sequence[str]) -> Iterator[Head | tuple[str, NoReply]]:
        """Pull one by one: Flower raises at a reply that it cannot read, and others of that pull would be lost."""
        for number in numbers:
            try:
                replies = list(self._grid.pull_messages([number]))
            except PARSE_ERRORS:
                yield number, UNREADABLE
                continue
            yield from (Head(number, whole=reply) for reply in replies)

    def piece(self, name: str) -> bytes | None:
        """There are none."""
        raise PieceLost(name)

    def message(self, head: Head, pieces: dict[str, bytes]) -> Message:
        """Return the reply as it was pulled."""
        assert head.whole is not None
        return head.whole


class ServerReplies:
    """Replies that Flower's server holds, through the client of Flower's HTTP grid."""

    def __init__(self, grid: Any, retry: Callable[[Callable[[], Any]], Any]) -> None:
        self._grid, self._retry = grid, retry

    def heads(self, numbers: Sequence[str]) -> Iterator[Head | tuple[str, NoReply]]:
        """Ask for all with one request."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        if not numbers:
            return
        request = PullAppMessagesRequest(message_ids=list(numbers))
        response = self._retry(lambda: self._grid._runtime_client.PullMessages(request))
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            number = str(message.metadata.reply_to_message_id)
            try:
                pieces = tuple(dict.fromkeys(_names(tree)))
            except PARSE_ERRORS:
                yield number, UNREADABLE
                continue
            yield Head(number, str(message.metadata.message_id), pieces)

    def piece(self, name: str) -> bytes | None:
        """Ask the server once."""
        from flwr.proto.message_pb2 import PullObjectRequest

        request = PullObjectRequest(node=self._grid.node, run_id=self._grid.run.run_id, object_id=name)
        response = self._retry(lambda: self._grid._runtime_client.PullObject(request))
        if not response.object_found:
            raise PieceLost(name)
        return bytes(response.object_content) if response.object_available else None

    def message(self, head: Head, pieces: dict[str, bytes]) -> Message:
        """Put the reply together as Flower's grid does."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        confirm = ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=head.message_id
        )
        self._retry(lambda: self._grid._runtime_client.ConfirmMessageReceived(confirm))
        message = inflate_object_from_contents(head.message_id, pieces)
        if not isinstance(message, Message):
            raise TypeError(type(message).__name__)
        message.metadata.__dict__["_message_id"] = head.message_id
        return message


def _names(tree: Any) -> Iterator[str]:
    """Yield the names of a reply's pieces; the first is announced with the reply and needed first."""
    stack, count = [tree], 0
    while stack:
        branch = stack.pop()
        count += 1
        if count > MAX_PIECES:
            raise ValueError("too many pieces")
        yield str(branch.object_id)
        stack.extend(branch.children)


def reply_source(grid: Any) -> Source:
    """Return where the replies of a grid come from."""
    retry: Callable[[Callable[[], Any]], Any] = lambda call: call()  # noqa: E731
    inner = grid
    if isinstance(grid, RetryingGrid):
        inner, retry = grid.inner, grid.retry
    if hasattr(inner, "_runtime_client") and hasattr(inner, "node"):
        return ServerReplies(inner, retry)
    return WholeReplies(grid)


@dataclass
class Transfer:
    """A reply on its way: what is still missing, what has come, and the seconds that it has taken."""

    head: Head
    polled_at: float
    missing: list[str]
    pieces: dict[str, bytes] = field(default_factory=dict)
    received: int = 0
    seconds: float = 0.0

    @property
    def next_piece(self) -> int:
        """Return the largest size that the next piece can have."""
        return SMALL if len(self.head.pieces) <= SMALL_PIECES else CHUNK

    def tick(self, now: float) -> None:
        """Count the time since the last poll."""
        self.seconds += min(now - self.polled_at, MAX_GAP)
        self.polled_at = now


class Transfers:
    """The replies on their way; a reply larger than `limit` bytes, or slower than `limits`, is given up."""

    def __init__(
        self,
        source: Source,
        limit: int,
        limits: UploadLimits | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source, self.limit, self.limits, self._now = source, limit, limits or UploadLimits(), now
        self._open: dict[str, Transfer] = {}

    def uploading(self, number: str) -> bool:
        """Return whether the reply to this message was announced and is not complete."""
        return number in self._open

    def forget(self, numbers: Iterable[str]) -> None:
        """Drop what has come of the replies to these messages."""
        for number in numbers:
            self._open.pop(number, None)

    def poll(self, numbers: Iterable[str], limit: int = 0) -> Iterator[tuple[str, Message | NoReply]]:
        """Yield the replies to these messages that are complete or given up, by the messages' numbers."""
        listed, results = list(numbers), dict[str, Message | NoReply]()
        for head in self.source.heads([number for number in listed if number not in self._open]):
            if isinstance(head, Head):
                self._open[head.number] = Transfer(head, self._now(), list(reversed(head.pieces)))
            else:
                results[head[0]] = head[1]
        for number in listed:
            transfer = self._open.get(number)
            if transfer is not None and (reply := self._advance(transfer, limit or self.limit)) is not None:
                del self._open[number]
                results[number] = reply
        yield from ((number, results[number]) for number in listed if number in results)

    def _advance(self, transfer: Transfer, limit: int) -> Message | NoReply | None:
        """Fetch pieces that are there; return the reply when all are, or why there will be none."""
        transfer.tick(self._now())
        try:
            for _ in range(PIECES_PER_POLL):
                if not transfer.missing:
                    return self.source.message(transfer.head, transfer.pieces)
                data = self.source.piece(transfer.missing[-1])
                if data is None:
                    return self._overdue(transfer)
                transfer.pieces[transfer.missing.pop()] = data
                transfer.received += len(data)
                if transfer.received > limit + OVERHEAD:
                    return NoReply(f"The message holds more than {limit} bytes.")
        except PieceLost:
            return NoReply("its upload was not completed", "lost")
        except PARSE_ERRORS:
            return UNREADABLE
        return None

    def _overdue(self, transfer: Transfer) -> NoReply | None:
        if transfer.seconds <= self.limits.seconds(transfer.received, transfer.next_piece):
            return None
        count = len(transfer.head.pieces)
        return NoReply(
            f"its answer was announced, and in {transfer.seconds:.0f} seconds {count - len(transfer.missing)} of "
            f"{count} pieces came (engine.upload_grace, engine.upload_rate)",
            "lost",
        )
