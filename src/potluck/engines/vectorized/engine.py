"""The serial engine's faster sibling: waiting training jobs of one architecture are done together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from potluck.core.client import Client
from potluck.core.random import seeded, without_denormals
from potluck.engines.memory import SpillFolder, default_budget
from potluck.engines.vectorized.seats import Seat, run_together
from potluck.loop.jobs import Answer, Failure, Job
from potluck.loop.worker import Budget, Worker, failure_of


class VectorizedEngine:
    """One process. Agrees with the serial engine up to rounding; draws of dropout differ.

    Between groups, clients that take more than `memory` bytes together (half of what is free unless told) wait
    in a temporary folder below `spill_dir`; those of one group are all in memory while they train.
    """

    name = "vectorized"
    realtime = False
    remote = False

    def __init__(self, worker: Worker, memory: Budget = None, spill_dir: Path | str | None = None) -> None:
        self.worker = worker
        self._jobs: deque[Job] = deque()
        self._ready: deque[Answer | Failure] = deque()
        self._spill = SpillFolder(spill_dir)
        worker.cache.limit(self._spill, default_budget if memory is None else memory)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)

    def results(self) -> Iterator[Answer | Failure]:
        """Do queued jobs: training jobs that stand together in the queue in groups, others one by one."""
        while self._jobs or self._ready:
            if not self._ready:
                self._ready.extend(self._run_group(self._next_group()))
            yield self._ready.popleft()

    def _next_group(self) -> list[Job]:
        jobs = [self._jobs.popleft()]
        clients = {jobs[0].client}
        while jobs[0].kind == "train" and self._jobs and self._jobs[0].kind == "train":
            if self._jobs[0].client in clients:
                break
            jobs.append(self._jobs.popleft())
            clients.add(jobs[-1].client)
        return jobs

    def _run_group(self, jobs: Sequence[Job]) -> list[Answer | Failure]:
        if len(jobs) == 1:
            return [self.worker.run(jobs[0])]
        started = time.perf_counter()
        results = self._together(jobs)
        try:
            self.worker.note_changes(*jobs)
        except Exception as error:
            return [failure_of(job, "storing the clients", error) for job in jobs]
        share = (time.perf_counter() - started) / len(jobs)
        return [
            result if isinstance(result, Failure) else replace(result, seconds=share) for result in results
        ]

    def _together(self, jobs: Sequence[Job]) -> list[Answer | Failure]:
        """The results in the order of the jobs; a client that cannot be made, or raises, fails alone."""
        results: dict[int, Answer | Failure] = {}
        present: list[tuple[Client, Job]] = []
        for job in jobs:
            try:
                present.append((self.worker.client(job.client), job))
            except Exception as error:
                results[job.id] = failure_of(job, "set-up", error)
        if present:
            first, job = present[0]
            with without_denormals(), seeded(first.task.seed, "torch", "cohort", first.info.name, job.number):
                done = run_together([Seat(me, partial(self.worker.do, me, job)) for me, job in present])
            for (_, job), result in zip(present, done, strict=True):
                failed = isinstance(result, BaseException)
                results[job.id] = failure_of(job, job.kind, result) if failed else result
        return [results[job.id] for job in jobs]

    def close(self) -> None:
        """Forget what waits and delete the folder of those that were put away."""
        self._jobs.clear()
        self._ready.clear()
        self._spill.remove()
