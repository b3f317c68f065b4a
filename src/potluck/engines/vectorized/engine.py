"""The serial engine's faster sibling: training jobs of one server step and architecture are done together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from potluck.engines.memory import SpillFolder, default_budget
from potluck.engines.vectorized.teams import Team, Teams, run_team
from potluck.loop.jobs import Answer, Failure, Job
from potluck.loop.worker import Budget, Worker


class VectorizedEngine:
    """One process. Agrees with the serial engine up to rounding; draws of dropout differ.

    Between teams, clients that take more than `memory` bytes together (half of what is free unless told) wait
    in a temporary folder below `spill_dir`; those of one team are all in memory while they train.
    """

    name = "vectorized"
    realtime = False
    remote = False

    def __init__(
        self, worker: Worker, teams: Teams, memory: Budget = None, spill_dir: Path | str | None = None
    ) -> None:
        self.worker, self.teams = worker, teams
        self._jobs: list[Job] = []
        self._waiting: deque[Team] = deque()
        self._ready: deque[Answer | Failure] = deque()
        self._spill = SpillFolder(spill_dir)
        worker.cache.limit(self._spill, default_budget if memory is None else memory)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)

    def results(self) -> Iterator[Answer | Failure]:
        """Do queued jobs team by team."""
        self._waiting.extend(self.teams.cut(self._jobs))
        self._jobs.clear()
        while self._waiting or self._ready:
            if not self._ready:
                self._ready.extend(run_team(self.worker, self._waiting.popleft()))
            yield self._ready.popleft()

    def close(self) -> None:
        """Forget what waits and delete the folder of those that were put away."""
        for queue in (self._jobs, self._waiting, self._ready):
            queue.clear()
        self._spill.remove()
