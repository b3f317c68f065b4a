"""Letters as Flower carries them: the bytes as one array inside a `RecordDict`.

Their size is checked before they are read, and Flower cuts them into chunks like any other array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from potluck.core.errors import plain
from potluck.core.payload import PayloadError
from potluck.flower.patient import PatientGrid
from potluck.loop.letter import Letter, from_bytes, to_bytes

RECORD, KIND = "potluck", "letter"


def to_record(letter: Letter) -> RecordDict:
    """The content of a Flower message."""
    data = to_bytes(letter)
    array = Array(dtype="uint8", shape=(len(data),), stype=KIND, data=data)
    return RecordDict({RECORD: ArrayRecord({KIND: array})})


def from_record(content: RecordDict, limit: int) -> Letter:
    """What `to_record` made; anything else, or anything larger than `limit` bytes, is refused unread."""
    record = content.array_records.get(RECORD)
    if record is None or list(record) != [KIND] or record[KIND].stype != KIND:
        raise PayloadError("The message is not one of Potluck's.")
    data = record[KIND].data
    if len(data) > limit:
        raise PayloadError(f"The message holds {len(data)} bytes, the limit is {limit}.")
    return from_bytes(data)


UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    ArithmeticError,
    DecodeError,
)
"""What Flower's reader raises at content that is not as it should be; trouble of the connection is none of these."""


def read(reply: Message, limit: int) -> Letter:
    """The letter in a reply; whatever a record of another form raises where it is taken apart is a refusal."""
    try:
        return from_record(reply.content, limit)
    except UNREADABLE as error:
        raise PayloadError(f"The message could not be read: {type(error).__name__}.") from None


def pulled(grid: Grid | PatientGrid, numbers: Iterable[str]) -> Iterator[tuple[str, Message | None]]:
    """The replies that are there, by the numbers of the messages they answer; None for one that cannot be read.

    Each is pulled for itself: Flower raises at one that it cannot read, and the others of that pull would be lost.
    """
    for number in numbers:
        try:
            replies = list(grid.pull_messages([number]))
        except UNREADABLE:
            yield number, None
            continue
        yield from ((number, reply) for reply in replies)


GONE = frozenset(
    {
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.CLIENT_APP_CRASHED,
    }
)
"""What Flower answers for a node that is gone, or that lost the process at work: it is not the node's own word."""


def reason(error: Error) -> str:
    """Why there is no content, in words that are fit to be kept."""
    return plain(str(error.reason or f"Flower error {error.code}"))
