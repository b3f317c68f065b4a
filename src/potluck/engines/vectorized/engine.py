"""The serial engine's faster sibling: training jobs of one server step and architecture are done together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from potluck.engines.vectorized.batches import JobBatch, JobBatcher, run_batch
from potluck.engines.vectorized.rendezvous import JobThreads
from potluck.wire.jobs import Answer, Failure, Job
from potluck.worker.cache import Budget
from potluck.worker.memory import SpillFolder, default_budget
from potluck.worker.worker import Worker


class VectorizedEngine:
    """One process. Agrees with the serial engine up to rounding; draws of dropout differ.

    Between batches, clients that take more than `memory` bytes together (default: half of what is free) wait
    in a temporary folder below `spill_dir`; those of one team are all in memory while they train.
    """

    name = "vectorized"
    realtime = False
    remote = False

    def __init__(
        self, worker: Worker, batcher: JobBatcher, memory: Budget = None, spill_dir: Path | str | None = None
    ) -> None:
        self.worker, self.batcher = worker, batcher
        self._threads = JobThreads()
        self._jobs: list[Job] = []
        self._waiting: deque[JobBatch] = deque()
        self._ready: deque[Answer | Failure] = deque()
        self._spill = SpillFolder(spill_dir)
        worker.cache.set_budget(self._spill, default_budget if memory is None else memory)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)

    def results(self) -> Iterator[Answer | Failure]:
        """Do queued jobs team by team."""
        self._waiting.extend(self.batcher.split(self._jobs))
        self._jobs.clear()
        while self._waiting or self._ready:
            if not self._ready:
                self._ready.extend(run_batch(self.worker, self._waiting.popleft(), self._threads))
            yield self._ready.popleft()

    def close(self) -> None:
        """Forget what waits and delete the folder of those that were put away."""
        for queue in (self._jobs, self._waiting, self._ready):
            queue.clear()
        self._threads.close()
        self._spill.remove()
