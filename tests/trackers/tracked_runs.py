"""Tracked, stopped and resumed runs; and a reader for W&B files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import potluck

Tracked = Callable[..., potluck.Run]


def wandb_records(path: Path) -> tuple[list[Any], list[dict[str, Any]]]:
    """The run records and the history rows of all offline files below a run's folder, by W&B's own message types."""
    from wandb.proto import wandb_internal_pb2

    runs, history = [], []
    for file in sorted(path.glob("wandb/offline-run-*/*.wandb")):
        for data in _log_entries(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                runs.append(record.run)
            if record.HasField("history"):
                items = record.history.item
                history.append({i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items})
    return runs, history


def _log_entries(data: bytes, block: int = 32768) -> Iterator[bytes]:
    """LevelDB's log format after a head of seven bytes: checksum, length, and whole (1) or first, middle, last part."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if block - place % block < 7:  # no room for a head: the block is filled up with zeros
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""
