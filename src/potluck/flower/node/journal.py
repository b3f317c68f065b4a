"""A node's private state on its own disk, committed after every training job."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from potluck.core.errors import PotluckError
from potluck.core.tree import Flat
from potluck.loop.letter import encode_state, load_state


class Journal:
    """`state-N` is the client after N jobs, `answer-N` what it answered to job N (counted from 0).

    The answer is on the disk before the state that makes it valid, so a node may die at any moment. A server
    that was restarted asks again what it had asked before: then the stored answer is given, and nothing is
    trained twice. The last `keep` jobs are kept.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One job at a time: a late one may still be at work when the next arrives."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.folder / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def state(self, job: int) -> Flat | None:
        """The newest state before a job; None where the client is still as it was made."""
        numbers = self._numbers()
        usable = [number for number in numbers if number <= job]
        if usable:
            return load_state(self._state(max(usable)))
        if numbers and job > 0:
            raise PotluckError(
                f"job {job} is older than what this node keeps (from job {min(numbers)}); raise `keep` in node.toml"
            )
        return None

    def answer(self, job: int, question: bytes) -> bytes | None:
        """What was answered to this very question before, if anything."""
        path = self._answer(job)
        if not path.exists() or not self._state(job + 1).exists():
            return None
        data = path.read_bytes()
        return data[32:] if data[:32] == _digest(question) else None

    def commit(self, job: int, question: bytes, answer: bytes, state: Flat) -> None:
        """Make a job's outcome the present one; what followed an older outcome of it is void."""
        for number in self._numbers():
            if number > job or number <= job + 1 - self.keep:
                self._state(number).unlink()
                self._answer(number - 1).unlink(missing_ok=True)
        _write(self._answer(job), _digest(question) + answer)
        _write(self._state(job + 1), encode_state(state))

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem.partition("-")[2]) for path in self.folder.glob("state-*.safetensors"))

    def _state(self, number: int) -> Path:
        return self.folder / f"state-{number}.safetensors"

    def _answer(self, job: int) -> Path:
        return self.folder / f"answer-{job}.bin"


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
