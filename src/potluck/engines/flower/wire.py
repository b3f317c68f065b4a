"""Messages of Potluck as Flower carries them: one safetensors image inside a `RecordDict`.

The image holds typed tensors and a JSON header. It is read without executing anything, its size is checked
before it is read, and Flower cuts it into chunks like any other array.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from potluck.codec import encode_state
from potluck.core.payload import PayloadError
from potluck.core.tree import Flat
from potluck.nodes.packing import read_image

RECORD, KIND = "potluck", "safetensors"


def to_record(flat: Flat) -> RecordDict:
    """The content of a Flower message."""
    data = encode_state(flat)
    image = Array(dtype="uint8", shape=(len(data),), stype=KIND, data=data)
    return RecordDict({RECORD: ArrayRecord({KIND: image})})


def from_record(content: RecordDict, limit: int) -> Flat:
    """What `to_record` made; anything else, or anything larger than `limit` bytes, is refused unread."""
    record = content.array_records.get(RECORD)
    if record is None or list(record) != [KIND] or record[KIND].stype != KIND:
        raise PayloadError("The message is not one of Potluck's.")
    data = record[KIND].data
    if len(data) > limit:
        raise PayloadError(f"The message holds {len(data)} bytes, the limit is {limit}.")
    return read_image(data)
