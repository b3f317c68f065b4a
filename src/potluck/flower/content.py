"""The content of a Flower message: the bytes of one wire message as the only record of a `RecordDict`.

A small one is a `ConfigRecord`, which Flower sends as one object; a large one is an array, which Flower cuts into
chunks. This module imports neither torch nor the wire format.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

RECORD, KIND = "potluck", "letter"
SMALL = 1 << 20
"""Bytes up to which a message is one object."""


def to_content(data: bytes) -> RecordDict:
    """Wrap the bytes of a wire message."""
    if len(data) <= SMALL:
        return RecordDict({RECORD: ConfigRecord({KIND: data})})
    array = Array(dtype="uint8", shape=(len(data),), stype=KIND, data=data)
    return RecordDict({RECORD: ArrayRecord({KIND: array})})


def content_bytes(content: RecordDict) -> bytes | None:
    """Return the bytes that `to_content` wrapped; None for the content of another app."""
    record = content.get(RECORD)
    if not isinstance(record, ConfigRecord | ArrayRecord) or list(record) != [KIND]:
        return None
    value: object = record[KIND]
    if isinstance(value, Array):
        value = value.data if value.stype == KIND else None
    return value if isinstance(value, bytes) else None
