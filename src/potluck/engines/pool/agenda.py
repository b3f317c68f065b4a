"""Who does what next: the jobs that wait, where each client lives, and which job an idle worker takes."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping

from potluck.engines.pool.costs import Costs
from potluck.loop.jobs import Job

Entry = tuple[float, int, int]
"""(minus the expected seconds, the job's id, the client): a heap gives the longest job first."""

NOBODY = -1


class Agenda:
    """Waiting jobs, those of one client in the order submitted, one at a time.

    A client's home is the worker that has it in memory. An idle worker takes the longest job among its own
    clients and those without a home; with none left it takes one from the worker with most work ahead, if
    that saves more than moving the client costs.
    """

    def __init__(
        self, costs: Costs, moving: float = 0.02, place: Callable[[int], str] = lambda worker: ""
    ) -> None:
        self.costs, self._place = costs, place
        self.moving = moving
        self._jobs: defaultdict[int, deque[Job]] = defaultdict(deque)
        self._at_work: set[int] = set()
        self._home: dict[int, int] = {}
        self._ready: defaultdict[int, list[Entry]] = defaultdict(list)
        self._ahead: defaultdict[int, float] = defaultdict(float)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, job: Job) -> None:
        """A new job, behind those of the same client."""
        self._jobs[job.client].append(job)
        if len(self._jobs[job.client]) == 1 and job.client not in self._at_work:
            self._offer(job.client)

    def again(self, job: Job) -> None:
        """A job whose worker died goes first among its client's."""
        self._at_work.discard(job.client)
        self._jobs[job.client].appendleft(job)
        self._offer(job.client)

    def done(self, client: int) -> None:
        """A client's job ended: its next one may start."""
        self._at_work.discard(client)
        if client in self._jobs:
            self._offer(client)

    def take(self, worker: int, busy: Mapping[int, float]) -> tuple[Job, int] | None:
        """The job for an idle worker, and the worker that the client leaves for it (or `NOBODY`).

        `busy` gives the seconds that each other worker still needs for what it does now.
        """
        own = [(self._ready[key][0], key) for key in (worker, NOBODY) if self._ready[key]]
        source = min(own)[1] if own else self._worth_helping(worker, busy)
        if source is None:
            return None
        cost, _, client = heapq.heappop(self._ready[source])
        self._ahead[source] += cost
        self._home[client] = worker
        self._at_work.add(client)
        job = self._jobs[client].popleft()
        if not self._jobs[client]:
            del self._jobs[client]
        return job, (NOBODY if source == worker else source)

    def _offer(self, client: int) -> None:
        job, home = self._jobs[client][0], self._home.get(client, NOBODY)
        cost = self.costs.of(job)
        heapq.heappush(self._ready[home], (-cost, job.id, client))
        self._ahead[home] += cost

    def _worth_helping(self, worker: int, busy: Mapping[int, float]) -> int | None:
        """The worker with most to do before it would come to the job we could take from it now.

        Where our device is slower than its, the job takes longer here: that much more it must have to do.
        """
        gains = {
            other: self._gain(worker, other, heap[0], busy.get(other, 0.0))
            for other, heap in self._ready.items()
            if heap and other != worker
        }
        longest = max(gains, key=lambda other: (gains[other], -other), default=None)
        return longest if longest is not None and gains[longest] > self.moving else None

    def _gain(self, worker: int, other: int, entry: Entry, busy: float) -> float:
        """Seconds by which a job would end sooner with us than with the worker that has it."""
        cost, kind = -entry[0], self._jobs[entry[2]][0].kind
        here, there = (self.costs.slowness(kind, self._place(one)) for one in (worker, other))
        return busy + (self._ahead[other] - cost) * there + cost * (there - here)
