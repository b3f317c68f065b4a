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
from potluck.flower.node.space import write_with_space
from potluck.wire import encode_state, load_state

DIGEST = 32
ASSIGNMENT = "experiment.json"
"""The file with the experiment of a run, from which the node's model can be exported later."""


class Journal:
    """`state-N` is the client after N jobs, `answer-N` what it answered to job N (counted from 0).

    The answer is on the disk before the state that makes it valid, so a node may die at any moment. One job number has
    one answer: a server that was restarted, and asks again, is given the same one, whatever it asks under that number.
    So nothing is trained twice, noise is never drawn again, and no question takes later states away. The last `keep`
    jobs are kept; older ones are answered no more.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Yield one job at a time: a late one may still be at work when the next arrives."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.folder / ".lock", "w", opener=_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def version(self) -> int:
        """Return the number of the newest state: one more than the last training job; 0 before the first."""
        return max(self._numbers(), default=0)

    def changed(self) -> float:
        """Return when the newest state was written, in seconds since 1970; 0 before the first."""
        numbers = self._numbers()
        return self._state(numbers[-1]).stat().st_mtime if numbers else 0.0

    def keep_experiment(self, experiment: str) -> None:
        """Write the experiment, as JSON, beside the states that are trained in it."""
        if not (self.folder / ASSIGNMENT).exists():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(self.folder / ASSIGNMENT, experiment.encode())

    def state(self) -> Flat | None:
        """Return the client as its last job left it; None where it is still as it was made."""
        numbers = self._numbers()
        return load_state(self._state(numbers[-1])) if numbers else None

    def answer(self, job: int) -> bytes | None:
        """Return what was answered under this number, if anything; a number below those kept is refused."""
        numbers = self._numbers()
        if not numbers or job >= numbers[-1]:
            return None
        path = self._answer(job)
        if path.exists() and job + 1 in numbers:
            return path.read_bytes()
        raise PotluckError(
            f"job {job} is over, and this node has no answer to it (only to jobs {numbers[0] - 1} to {numbers[-1] - 1})"
        )

    def commit(self, job: int, answer: bytes, state: Flat) -> None:
        """Make a job's outcome the present one; what is older than the last `keep` goes."""
        _write(self._answer(job), answer)
        _write(self._state(job + 1), encode_state(state))
        for number in self._numbers():
            if number <= job + 1 - self.keep:
                self._state(number).unlink()
                self._answer(number - 1).unlink(missing_ok=True)

    # -- secure sums ------------------------------------------------------------------------------------------

    def sum_reply(self, job: int, stage: str, request: bytes) -> bytes | None:
        """Return what was replied to this request of a secure sum; None if nothing was.

        An answer is masked for one group of clients and opened once: two sums that differ by one client would tell
        that client's answer. So another request is refused for good, whoever lost the reply to the first.
        """
        path = self._sum(job, stage)
        if not path.exists():
            return None
        data = path.read_bytes()
        if data[:DIGEST] == hashlib.sha256(request).digest():
            return data[DIGEST:]
        if stage == "deal" and not self._sum(job, "mask").exists():
            return None
        raise PotluckError(
            f"the answer of round job {job} was already given to another secure sum ({stage}), and is given to one only"
        )

    def commit_sum(self, job: int, stage: str, request: bytes, reply: bytes) -> None:
        """Store the reply to a request of a secure sum, before it leaves."""
        _write(self._sum(job, stage), hashlib.sha256(request).digest() + reply)
        for path in self.folder.glob("sum-*.bin"):
            if int(path.stem.split("-")[1]) <= job - self.keep:
                path.unlink()

    def _sum(self, job: int, stage: str) -> Path:
        return self.folder / f"sum-{job}-{stage}.bin"

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem.partition("-")[2]) for path in self.folder.glob("state-*.safetensors"))

    def _state(self, number: int) -> Path:
        return self.folder / f"state-{number}.safetensors"

    def _answer(self, job: int) -> Path:
        return self.folder / f"answer-{job}.bin"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")

    def write() -> None:
        try:
            with open(temporary, "wb", opener=_private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        temporary.replace(path)

    write_with_space(write, path)
