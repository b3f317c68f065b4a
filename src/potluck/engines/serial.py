"""The reference engine: one process, one thread, one job after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from potluck.core.job import Answer, Failure, Job
from potluck.core.worker import Worker


class SerialEngine:
    """Does jobs in the order submitted, when an answer is asked for. All other engines must agree with it."""

    name = "serial"
    realtime = False

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._jobs: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)

    def results(self) -> Iterator[Answer | Failure]:
        """Do queued jobs one by one."""
        while self._jobs:
            yield self.worker.run(self._jobs.popleft())

    def close(self) -> None:
        """Nothing is held."""
        self._jobs.clear()
