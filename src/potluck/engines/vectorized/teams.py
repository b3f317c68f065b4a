"""Which training jobs are done together, and how a worker does them.

Who is in a team depends on the jobs alone, never on who works or how fast: so every engine computes the same bits.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from potluck.core.client import Client
from potluck.core.random import seeded, without_denormals
from potluck.core.task import Task
from potluck.engines.vectorized.seats import Seat, run_together
from potluck.engines.vectorized.stack import in_pieces
from potluck.loop.jobs import Answer, Failure, Job
from potluck.loop.worker import Worker, failure_of

Team = Sequence[Job]
"""Jobs that one worker does at a time, each of another client."""


class Teams:
    """Cuts jobs into teams: clients of one architecture that were sent to train in one server step."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def cut(self, jobs: Iterable[Job]) -> list[Team]:
        """In the order submitted; whoever does anything but train is alone."""
        stretches = [list(jobs) for _, jobs in groupby(jobs, key=lambda job: (job.kind, job.step))]
        return [team for stretch in stretches for team in self._cut(stretch)]

    def _cut(self, jobs: Sequence[Job]) -> list[Team]:
        if jobs[0].kind != "train":
            return [[job] for job in jobs]
        alike: dict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            alike[self.task.clients[job.client].architecture].append(job)
        kinds, device = self.task.architectures, self.task.device
        return [
            piece
            for name, group in alike.items()
            for piece in in_pieces(group, kinds[name].initial.values(), device)
        ]


def run_team(worker: Worker, jobs: Team) -> list[Answer | Failure]:
    """The results in the order of the jobs; one job is done as it always is."""
    if len(jobs) == 1:
        return [worker.run(jobs[0])]
    started = time.perf_counter()
    results = _together(worker, jobs)
    try:
        worker.note_changes(*jobs)
    except Exception as error:
        return [failure_of(job, "storing the clients", error) for job in jobs]
    share = (time.perf_counter() - started) / len(jobs)
    return [result if isinstance(result, Failure) else replace(result, seconds=share) for result in results]


def _together(worker: Worker, jobs: Team) -> list[Answer | Failure]:
    """A client that cannot be made, or raises, fails alone."""
    results: dict[int, Answer | Failure] = {}
    present: list[tuple[Client, Job]] = []
    for job in jobs:
        try:
            present.append((worker.client(job.client), job))
        except Exception as error:
            results[job.id] = failure_of(job, "set-up", error)
    if present:
        first, job = present[0]
        with without_denormals(), seeded(first.task.seed, "torch", "cohort", first.info.name, job.number):
            done = run_together([Seat(me, partial(worker.do, me, job)) for me, job in present])
        for (_, job), result in zip(present, done, strict=True):
            failed = isinstance(result, BaseException)
            results[job.id] = failure_of(job, job.kind, result) if failed else result
    return [results[job.id] for job in jobs]
