"""Choose the next job of a worker from measured durations."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping

from potluck.engines.vectorized.engine import JobBatch
from potluck.wire.jobs import Job, Kind

RelativeCost = Callable[[int], float]
"""The relative cost of a client's job before anything was measured: parameters × samples, say."""


class DurationEstimates:
    """Seconds per client and kind of job. A client not measured yet is guessed at the others' speed.

    Where devices are of different speed, seconds are those of the mean device; each has a factor of its own.
    """

    def __init__(self, guess: RelativeCost | None = None) -> None:
        self._guess = guess or (lambda client: 1.0)
        self._seconds: dict[tuple[Kind, int], float] = {}
        self._totals: dict[Kind, tuple[float, float]] = {}
        self._by_device: dict[tuple[Kind, str], tuple[float, float]] = {}

    def record(self, job: Job, seconds: float, device: str = "") -> None:
        """Record how long a job took on a device, averaged with the previous figure."""
        key, guess = (job.kind, job.client), self._guess(job.client)
        took, guessed = self._totals.get(job.kind, (0.0, 0.0))
        self._totals[job.kind] = took + seconds, guessed + guess
        took, guessed = self._by_device.get((job.kind, device), (0.0, 0.0))
        self._by_device[job.kind, device] = took + seconds, guessed + guess
        seconds /= self.slowness(job.kind, device)
        self._seconds[key] = (self._seconds.get(key, seconds) + seconds) / 2

    def slowness(self, kind: Kind, device: str) -> float:
        """Return how many times as long as on the mean device jobs of a kind take on this one, as far as is known."""
        took, guessed = self._totals.get(kind, (0.0, 0.0))
        measured, guess = self._by_device.get((kind, device), (0.0, 0.0))
        if not (took and guessed and measured and guess):
            return 1.0
        return (measured / guess) / (took / guessed)

    def of_batch(self, batch: JobBatch, device: str | None = None) -> float:
        """Return the seconds expected for all jobs of a batch."""
        return sum(self.of(job, device) for job in batch)

    def of(self, job: Job, device: str | None = None) -> float:
        """Estimate the seconds of a job, on a device if given; before the first measurement of its kind, the guess."""
        if device is not None:
            return self.of(job) * self.slowness(job.kind, device)
        measured = self._seconds.get((job.kind, job.client))
        if measured is not None:
            return measured
        took, guessed = self._totals.get(job.kind, (1.0, 1.0))
        return self._guess(job.client) * (took / guessed if guessed else 1.0)


Entry = tuple[float, int, JobBatch]
"""(minus the expected seconds, the id of the first job, the batch): a heap gives the longest work first."""

NO_WORKER = -1


class JobQueue:
    """Waiting batches of jobs, mostly of one job each; those of one client in the order submitted, one at a time.

    A client's owner is the worker that has it in memory; a batch's is that of most of its clients. An idle worker takes
    the longest work among its own batches and those without an owner; with none left it takes some from the worker
    with most ahead, if that saves more than moving a client costs.
    """

    def __init__(
        self,
        costs: DurationEstimates,
        move_cost: float = 0.02,
        device: Callable[[int], str] = lambda worker: "",
    ) -> None:
        self.costs, self._device_of = costs, device
        self.move_cost = move_cost
        self._batches: defaultdict[int, deque[JobBatch]] = defaultdict(deque)
        self._at_work: set[int] = set()
        self._owner: dict[int, int] = {}
        self._ready: defaultdict[int, list[Entry]] = defaultdict(list)
        self._ahead: defaultdict[int, float] = defaultdict(float)

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, batch: JobBatch) -> None:
        """New jobs, each behind those of the same client."""
        for job in batch:
            self._batches[job.client].append(batch)
        self._offer(batch)

    def requeue(self, batch: JobBatch) -> None:
        """Jobs whose worker died go first among their clients'."""
        for job in batch:
            self._at_work.discard(job.client)
            self._batches[job.client].appendleft(batch)
        self._offer(batch)

    def done(self, batch: JobBatch) -> None:
        """Mark a batch of clients as ended: their next jobs may start."""
        for job in batch:
            self._at_work.discard(job.client)
        following = {id(queue[0]): queue[0] for job in batch if (queue := self._batches.get(job.client))}
        for waiting in following.values():
            self._offer(waiting)

    def take(self, worker: int, busy: Mapping[int, float]) -> tuple[JobBatch, list[tuple[int, int]]] | None:
        """Return the batch for an idle worker, and the clients that move there for it, each with the worker it leaves.

        `busy` gives the seconds that each other worker still needs for what it does now.
        """
        own = [(self._ready[key][0], key) for key in (worker, NO_WORKER) if self._ready[key]]
        source = min(own)[1] if own else self._worth_helping(worker, busy)
        if source is None:
            return None
        cost, _, batch = heapq.heappop(self._ready[source])
        self._ahead[source] += cost
        moved = [
            (job.client, owner)
            for job in batch
            if (owner := self._owner.get(job.client, NO_WORKER)) not in (worker, NO_WORKER)
        ]
        for job in batch:
            self._owner[job.client] = worker
            self._at_work.add(job.client)
            self._batches[job.client].popleft()
            if not self._batches[job.client]:
                del self._batches[job.client]
        return batch, moved

    def _offer(self, batch: JobBatch) -> None:
        """Make a batch available, if each of its jobs is its client's next."""
        if any(job.client in self._at_work or self._batches[job.client][0] is not batch for job in batch):
            return
        cost, owner = self.costs.of_batch(batch), self._owner_of(batch)
        heapq.heappush(self._ready[owner], (-cost, batch[0].id, batch))
        self._ahead[owner] += cost

    def _owner_of(self, batch: JobBatch) -> int:
        owners = Counter(owner for job in batch if (owner := self._owner.get(job.client)) is not None)
        return min(owners, key=lambda owner: (-owners[owner], owner), default=NO_WORKER)

    def _worth_helping(self, worker: int, busy: Mapping[int, float]) -> int | None:
        """Return the worker with most to do before it would start the batch that we could take from it now.

        Where our device is slower than its, the jobs take longer here: that much more it must have to do.
        """
        gains = {
            other: self._gain(worker, other, heap[0], busy.get(other, 0.0))
            for other, heap in self._ready.items()
            if heap and other != worker
        }
        longest = max(gains, key=lambda other: (gains[other], -other), default=None)
        return longest if longest is not None and gains[longest] > self.move_cost else None

    def _gain(self, worker: int, other: int, entry: Entry, busy: float) -> float:
        """Return seconds by which a batch would end sooner on this worker than on its owner."""
        cost, kind = -entry[0], entry[2][0].kind
        cost_here, cost_there = (
            self.costs.slowness(kind, self._device_of(number)) for number in (worker, other)
        )
        return busy + (self._ahead[other] - cost) * cost_there + cost * (cost_there - cost_here)
