"""Letters as Flower carries them: the bytes as one array inside a `RecordDict`.

Their size is checked before they are read, and Flower cuts them into chunks like any other array.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from potluck.core.payload import PayloadError
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
