"""A node's audit log: one line per answer, chained by digests, and its summary."""

from __future__ import annotations

import datetime
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.flower.node.space import write_with_space
from potluck.wire import Message, to_bytes

FIRST_DIGEST = "0" * 64
MAX_LINE_BYTES = 1 << 20
"""Bytes of a line; ours have some hundred."""
MAX_TENSORS_LISTED = 2000
"""Tensors that a line names; of a model with more, the digest has the rest."""


@dataclass(frozen=True)
class Entry:
    """What is asked for, for the line that its answer gets."""

    run: str
    kind: str
    method: str
    job: int = 0
    cost: float = 0.0
    """1/z² for noise multiplier z, which sums over answers; 0 where nothing new was told with noise."""
    without_noise: bool = False
    """Whether this was a new answer without any noise."""
    repeated: bool = False
    """Whether the same answer had left before."""


class AuditLog:
    """The file `audit.jsonl` in the node's state folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Yield the open file, ours alone; an unfinished last line, whose answer never left, is taken off."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def last(self) -> dict[str, Any]:
        """Return the newest line: its totals are those of the whole log."""
        with self.locked() as file:
            return self._last(file)

    def append(
        self, entry: Entry, message: Message, check: Callable[[dict[str, Any]], None] = lambda totals: None
    ) -> None:
        """Write down an answer before it leaves; `check` may refuse it, with the totals that are before it.

        What was allowed before it was computed may be too much by now: runs side by side spend from one budget.
        """
        data = to_bytes(message)
        with self.locked() as file:
            before = self._last(file)
            check(before)
            line = {
                "number": before["number"] + 1,
                "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                **{name: getattr(entry, name) for name in ("run", "kind", "method", "job")},
                "fields": describe_message(message),
                "bytes": len(data),
                "digest": hashlib.sha256(data).hexdigest(),
                "spent": before["spent"] + (0.0 if entry.repeated else entry.cost),
                "bare": before["bare"] + int(entry.without_noise and not entry.repeated),
                "again": entry.repeated,
                "before": before["chain"],
            }
            text = json.dumps({**line, "chain": line_digest(line)}, ensure_ascii=False)
            self._write(file, text.encode() + b"\n")

    def _write(self, file: int, line: bytes) -> None:
        """Write the whole line: an answer of which half a line is on the disk must not leave."""
        size = os.fstat(file).st_size

        def write() -> None:
            try:
                if os.write(file, line) != len(line):
                    raise OSError(errno.ENOSPC, "a part of the line was written")
                os.fsync(file)
            except OSError:
                os.ftruncate(file, size)
                raise

        write_with_space(write, self.path)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield every line, checked; the first that does not fit raises a sentence."""
        before, number = FIRST_DIGEST, 0
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for data in file:
                number += 1
                line = _read(data)
                if line is None or line["before"] != before or line["number"] != number:
                    raise PotluckError(
                        f"{str(self.path)!r} was changed at line {number}: it does not follow from the line before."
                    )
                before = line["chain"]
                yield line

    def _last(self, file: int) -> dict[str, Any]:
        size = os.fstat(file).st_size
        tail = os.pread(file, MAX_LINE_BYTES, max(0, size - MAX_LINE_BYTES))
        complete_lines, _, torn = tail.rpartition(b"\n")
        if not complete_lines and size > len(tail):
            raise self._changed()
        if torn:
            os.ftruncate(file, size - len(torn))
        if not complete_lines:
            return {"number": 0, "spent": 0.0, "bare": 0, "chain": FIRST_DIGEST}
        line = _read(complete_lines.rpartition(b"\n")[2])
        if line is None:
            raise self._changed()
        return line

    def _changed(self) -> PotluckError:
        return PotluckError(
            f"This node's audit log {str(self.path)!r} was changed at its end; look at it and move it away."
        )


def describe_message(message: Message) -> dict[str, Any]:
    """Describe a message: its tensors with type and shape, its scores by name, its other facts by name."""
    description: dict[str, Any] = {}
    for part, flat in (("payload", message.payload), ("state", message.state), ("sums", message.sums)):
        if flat is not None:
            description[part] = {
                name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape]
                for name, tensor in islice(flat.tensors.items(), MAX_TENSORS_LISTED)
            }
            if len(flat.tensors) > MAX_TENSORS_LISTED:
                description[part]["and more"] = ["tensors", len(flat.tensors) - MAX_TENSORS_LISTED]
    answer = message.facts.get("answer")
    if isinstance(answer, dict):
        description["facts"] = sorted(
            name for name, value in answer.items() if value not in (None, 0, 0.0, {}, [])
        )
    if message.facts.get("scores"):
        description["scores"] = sorted(message.facts["scores"])
    description["says"] = sorted(message.facts)
    return description


def line_digest(line: dict[str, Any]) -> str:
    """Return the digest of a line without its own; the digest of the line before is in it."""
    return hashlib.sha256(json.dumps(line, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _read(data: bytes) -> dict[str, Any] | None:
    try:
        line = dict(json.loads(data))
        chain = line.pop("chain")
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return {**line, "chain": chain} if chain == line_digest(line) else None
