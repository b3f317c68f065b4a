"""The reference engine: one process, one thread, one job after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from potluck.wire.jobs import Answer, Failure, Job
from potluck.worker.cache import Budget
from potluck.worker.memory import SpillFolder, default_budget
from potluck.worker.worker import Worker


class SerialEngine:
    """Does jobs in the order submitted, when an answer is asked for. All other engines must agree with it.

    Clients that take more than `memory` bytes together (default: half of what is free) wait in a temporary
    folder below `spill_dir`.
    """

    name = "serial"
    realtime = False
    remote = False

    def __init__(self, worker: Worker, memory: Budget = None, spill_dir: Path | str | None = None) -> None:
        self.worker = worker
        self._jobs: deque[Job] = deque()
        self._spill = SpillFolder(spill_dir)
        worker.cache.set_budget(self._spill, default_budget if memory is None else memory)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)

    def results(self) -> Iterator[Answer | Failure]:
        """Do queued jobs one by one."""
        while self._jobs:
            yield self.worker.run(self._jobs.popleft())

    def close(self) -> None:
        """Forget what waits and delete the folder of those that were put away."""
        self._jobs.clear()
        self._spill.remove()
