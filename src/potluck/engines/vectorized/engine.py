"""The serial engine's faster sibling: waiting training jobs of one architecture are done together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from potluck.core.job import Answer, Failure, Job
from potluck.core.random import seeded
from potluck.core.worker import Worker, failure_of
from potluck.engines.vectorized.seats import Seat, run_together


class VectorizedEngine:
    """One process. Agrees with the serial engine up to rounding; draws of dropout differ."""

    name = "vectorized"
    realtime = False
    remote = False

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._jobs: deque[Job] = deque()
        self._ready: deque[Answer | Failure] = deque()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)

    def results(self) -> Iterator[Answer | Failure]:
        """Do queued jobs: training jobs that stand together in the queue as cohorts, others one by one."""
        while self._jobs or self._ready:
            if not self._ready:
                self._ready.extend(self._cohort(self._next_cohort()))
            yield self._ready.popleft()

    def _next_cohort(self) -> list[Job]:
        jobs = [self._jobs.popleft()]
        clients = {jobs[0].client}
        while jobs[0].kind == "train" and self._jobs and self._jobs[0].kind == "train":
            if self._jobs[0].client in clients:
                break
            jobs.append(self._jobs.popleft())
            clients.add(jobs[-1].client)
        return jobs

    def _cohort(self, jobs: Sequence[Job]) -> list[Answer | Failure]:
        if len(jobs) == 1:
            return [self.worker.run(jobs[0])]
        started = time.perf_counter()
        clients = [self.worker.client(job.client) for job in jobs]
        first = clients[0]
        with seeded(first.task.seed, "torch", "cohort", first.info.name, jobs[0].number):
            seats = [
                Seat(me, partial(self.worker.do, me, job)) for me, job in zip(clients, jobs, strict=True)
            ]
            results = run_together(seats)
        share = (time.perf_counter() - started) / len(jobs)
        return [
            failure_of(job, job.kind, result)
            if isinstance(result, BaseException)
            else replace(result, seconds=share)
            for job, result in zip(jobs, results, strict=True)
        ]

    def close(self) -> None:
        """Nothing is held."""
        self._jobs.clear()
        self._ready.clear()
