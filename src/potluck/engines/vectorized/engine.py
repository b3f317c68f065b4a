"""Group jobs of one architecture, run them together, and the engine that does so in one process."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from potluck.core.client import Client
from potluck.core.random import seeded, without_denormals
from potluck.core.task import Task
from potluck.engines.vectorized.rendezvous import JobThreads, run_paused_jobs
from potluck.engines.vectorized.stack import split_into_stacks
from potluck.wire.jobs import Answer, Failure, Job
from potluck.worker.cache import Budget
from potluck.worker.memory import SpillFolder, default_budget
from potluck.worker.worker import Worker, to_failure

JobBatch = Sequence[Job]
"""Jobs that one worker does at the same time, each of another client."""


class JobBatcher:
    """Groups training jobs of one server step and one architecture into batches that are trained as stacks."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def split(self, jobs: Iterable[Job]) -> list[JobBatch]:
        """Batches in the order submitted; jobs other than training are batches of one."""
        runs = [list(jobs) for _, jobs in groupby(jobs, key=lambda job: (job.kind, job.step))]
        return [batch for run in runs for batch in self._split(run)]

    def _split(self, jobs: Sequence[Job]) -> list[JobBatch]:
        if jobs[0].kind != "train":
            return [[job] for job in jobs]
        groups: dict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            groups[self.task.clients[job.client].architecture].append(job)
        kinds, device = self.task.architectures, self.task.device
        return [
            piece
            for name, group in groups.items()
            for piece in split_into_stacks(group, kinds[name].initial.values(), device)
        ]


def run_batch(worker: Worker, jobs: JobBatch, threads: JobThreads) -> list[Answer | Failure]:
    """Do the jobs, several of them together, and return their results in order."""
    if len(jobs) == 1:
        return [worker.run(jobs[0])]
    started, spent = time.perf_counter(), time.process_time()
    results = _run_together(worker, jobs, threads)
    try:
        worker.update_cache(*jobs)
    except Exception as error:
        return [to_failure(job, "storing the clients", error) for job in jobs]
    share, processor = (time.perf_counter() - started) / len(jobs), (time.process_time() - spent) / len(jobs)
    return [
        result if isinstance(result, Failure) else replace(result, seconds=share, processor_seconds=processor)
        for result in results
    ]


def _run_together(worker: Worker, jobs: JobBatch, threads: JobThreads) -> list[Answer | Failure]:
    """Run all jobs on their clients; a client that cannot be made, or that raises, fails alone."""
    results: dict[int, Answer | Failure] = {}
    present: list[tuple[Client, Job]] = []
    for job in jobs:
        try:
            present.append((worker.client(job.client), job))
        except Exception as error:
            results[job.id] = to_failure(job, "set-up", error)
    if present:
        first, job = present[0]
        with without_denormals(), seeded(first.task.seed, "torch", "cohort", first.info.name, job.number):
            outcomes = run_paused_jobs(
                [(me, partial(worker.execute, me, job)) for me, job in present], threads
            )
        for (_, job), result in zip(present, outcomes, strict=True):
            failed = isinstance(result, BaseException)
            results[job.id] = to_failure(job, job.kind, result) if failed else result
    return [results[job.id] for job in jobs]


class VectorizedEngine:
    """One process. Agrees with the serial engine up to rounding; draws of dropout differ.

    Between batches, clients that take more than `memory` bytes together (default: half of what is free) wait
    in a temporary folder below `spill_dir`; those of one batch are all in memory while they train.
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
        """Do queued jobs batch by batch."""
        self._waiting.extend(self.batcher.split(self._jobs))
        self._jobs.clear()
        while self._waiting or self._ready:
            if not self._ready:
                self._ready.extend(run_batch(self.worker, self._waiting.popleft(), self._threads))
            yield self._ready.popleft()

    def close(self) -> None:
        """Drop waiting jobs and delete the folder of evicted clients."""
        for queue in (self._jobs, self._waiting, self._ready):
            queue.clear()
        self._threads.close()
        self._spill.remove()
