"""Numbers jobs, submits them to the engine and matches results to jobs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.payload import Payload, PayloadError
from potluck.core.random import generator
from potluck.core.task import ClientInfo, Context, Task
from potluck.loop.records import PendingJob, Progress
from potluck.loop.schedule import Clock, LeadLimiter, Schedule, exclude, index_of
from potluck.wire import check_scores
from potluck.wire.jobs import Answer, Engine, Failure, Job, Kind, RefillsWorkers, Test

MAX_VALUES_IN_FLIGHT = 1 << 26
"""How many values of messages may be in memory at once when all clients get a job."""


class ClientFailed(PotluckError):
    """A client raised an exception, and `schedule.on_failure` is `stop`."""


@dataclass
class _InFlight:
    """Submitted jobs, taken from `coming` as there is room; `values` has the message size of each in numbers."""

    coming: Iterator[Job]
    waiting: deque[Job] = field(default_factory=deque)
    values: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def fill(self) -> None:
        """Submit jobs while there is room."""
        while self.total <= MAX_VALUES_IN_FLIGHT and (job := next(self.coming, None)) is not None:
            self.waiting.append(job)
            self.values[job.id] = 0 if job.message is None else job.message.numel()
            self.total += self.values[job.id]

    def end(self, jobs: Iterable[int]) -> None:
        """Free the room of jobs that have ended."""
        for job in jobs:
            self.total -= self.values.pop(job)


class Dispatcher:
    """Sends jobs to clients and collects their results; the order of delivery has no effect on results."""

    def __init__(
        self,
        engine: Engine,
        task: Task,
        method_name: str,
        progress: Progress,
        schedule: Schedule,
        clock: Clock,
    ) -> None:
        self.engine, self.task, self.progress = engine, task, progress
        self.method_name, self.schedule, self.clock = method_name, schedule, clock
        self._inbox: dict[int, Answer | Failure] = {}
        self._under_way: dict[int, Job] = {}
        self._lead_limiter: LeadLimiter | None = None
        self.listeners: list[Callable[[Job, Answer | Failure], None]] = []
        """Called with every result as it arrives; no result may depend on the order."""

    # -- training jobs on the virtual clock -----------------------------------------------------------------

    def choose(self, eligible: Sequence[int], left: int) -> list[int]:
        """Choose the clients that get a job now: as many as may work at once, of those idle and available."""
        now = self.progress
        busy = {pending.job.client for pending in now.pending}
        room = min(self.schedule.max_concurrent(len(eligible)), left) - len(busy)
        if room <= 0:
            return []
        now.draws += 1
        rng, lead = generator(self.task.seed, "sampling", now.draws), self.schedule.max_lead(len(eligible))
        if self.schedule.order:
            free = (index for index in self.schedule.ordered_clients(now.draws) if index not in busy)
            return sorted(index for index in free if index_of(index, eligible) is not None)[:room]
        available = self.clock.available
        idle = None if available is None else self._available(eligible, busy, available)
        if not lead:
            if idle is None:
                return self.schedule.draw(exclude(busy, eligible) if busy else eligible, room, rng)
            return self.schedule.draw(idle, room, rng)
        if idle is not None:  # clients that are away do not hold the others back
            return self._draw(LeadLimiter(sorted((*idle, *busy)), now.job_counts, lead), busy, room, rng)
        self._lead_limiter = self._lead_limiter or LeadLimiter(eligible, now.job_counts, lead)
        return self._draw(self._lead_limiter, busy, room, rng)

    def _available(
        self, eligible: Sequence[int], busy: Collection[int], available: Callable[[ClientInfo, int], bool]
    ) -> list[int]:
        """Return the idle clients that are available, or all idle ones where none is.

        Only this looks at every client at a draw, and only where clients may be unavailable.
        """
        clients, draw = self.task.clients, self.progress.draws
        idle = [index for index in eligible if index not in busy]
        return [index for index in idle if available(clients[index], draw)] or idle

    def _draw(
        self, limiter: LeadLimiter, busy: Collection[int], room: int, rng: torch.Generator
    ) -> list[int]:
        """Draw clients; one that is too far ahead of the client with the fewest jobs waits."""
        chosen: list[int] = []
        while len(chosen) < room and len(eligible := limiter.eligible((*busy, *chosen))):
            sampled = self.schedule.draw(eligible, room - len(chosen), rng)
            for index in sampled:
                limiter.record(index)
            chosen += sampled
        return sorted(chosen)

    def train(self, client: int, message: Payload, context: Context, tests: tuple[Test, ...]) -> None:
        """Submit a training job."""
        now, info = self.progress, self.task.clients[client]
        seconds = self.clock.duration(info, now.job_counts.get(client, 0), message)
        job = self.submit("train", client, context, message, tests=tests)
        now.job_counts[client] = job.number + 1
        now.pending.append(PendingJob(job, now.step, now.clock + seconds))

    def collect(self, count: int) -> list[PendingJob]:
        """Collect the next jobs that end, until `count` of them have an answer or no job is pending."""
        now, synchronous, usable = self.progress, self.schedule.synchronous, 0
        began = now.clock
        closes = began + self.schedule.round_timeout
        arrived: list[PendingJob] = []
        while now.pending and (usable < count or synchronous):
            pending = self._next_ended()
            # A synchronous round ends at its deadline or with enough answers; the rest come too late for it.
            if synchronous and (usable >= count or pending.finish > closes):
                if isinstance(pending.result, Answer):  # a failure stays a failure
                    late = f"answered after {pending.finish - began:.1f} virtual seconds of waiting"
                    pending.result = Failure(pending.job.id, pending.job.client, late, "late")
            else:
                now.clock = max(now.clock, pending.finish)
            usable += isinstance(pending.result, Answer)
            arrived.append(pending)
        if usable < count and synchronous and math.isfinite(closes):
            now.clock = closes
        return arrived

    def _next_ended(self) -> PendingJob:
        """Return the job that ends next: on the virtual clock, or by arrival on a real-time engine."""
        queue = self.progress.pending
        if self.engine.realtime:
            self._wait_for({pending.job.id for pending in queue}, count=1)
            first = next(pending for pending in queue if pending.job.id in self._inbox)
        else:
            first = self._first_to_end()
        self.wait_for(first)
        queue.remove(first)
        return first

    def _first_to_end(self) -> PendingJob:
        """Return the job that ends first on the virtual clock.

        An upload's time depends on the answer's size, so the first job is waited for; with its upload added, another
        job may be the first.
        """
        while True:
            first = min(self.progress.pending, key=lambda pending: (pending.finish, pending.job.id))
            if first.result is not None:
                return first
            self.wait_for(first)

    def wait_for(self, pending: PendingJob) -> None:
        """Wait for the result of a pending job, and add the time of its upload."""
        if pending.result is None:
            self._wait_for({pending.job.id})
            pending.result = self._validated(pending.job)
            if isinstance(pending.result, Answer):
                info = self.task.clients[pending.job.client]
                pending.finish += self.clock.upload(info, pending.result.bytes_up)

    def wait_for_pending(self) -> None:
        """Wait for the results of all pending jobs."""
        for pending in self.progress.pending:
            self.wait_for(pending)

    # -- any job ----------------------------------------------------------------------------------------------

    def submit(
        self,
        kind: Kind,
        client: int,
        context: Context,
        message: Payload | None = None,
        *,
        tests: tuple[Test, ...] = (),
        state: tree.Flat | None = None,
        details: bool = False,
        epochs: int = 0,
        sums: tree.Flat | None = None,
    ) -> Job:
        """Number a job and submit it to the engine."""
        now = self.progress
        now.jobs += 1
        number = now.job_counts.get(client, 0)
        job = Job(
            id=now.jobs,
            kind=kind,
            client=client,
            number=number,
            round=context.round,
            rounds=context.rounds,
            message=message,
            tests=tests,
            state=state,
            details=details,
            epochs=epochs,
            step=now.step,
            sums=sums,
        )
        if self.listeners:
            self._under_way[job.id] = replace(job, message=None, state=None, sums=None)
        self.engine.submit(job)
        return job

    def answers(self, jobs: Sequence[Job]) -> list[Answer | None]:
        """Wait for these jobs; a failed one gives None, or stops the run where the schedule says so."""
        return [result if isinstance(result, Answer) else None for result in self.results(jobs)]

    def results(self, jobs: Sequence[Job]) -> list[Answer | Failure]:
        """Wait for these jobs; a client's exception stops the run where the schedule says so."""
        self._wait_for({job.id for job in jobs})
        results: list[Answer | Failure] = []
        for job in jobs:
            result = self._validated(job)
            if isinstance(result, Failure):
                self.stop_on_error(result)
            results.append(result)
        return results

    def exchange(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Answer | None]]:
        """Yield each job with its answer, in order. The first jobs are submitted now, others as earlier ones end.

        `MAX_VALUES_IN_FLIGHT` limits the messages that are in memory at once.
        """
        in_flight = _InFlight(iter(jobs))
        in_flight.fill()
        return self._stream(in_flight)

    def _stream(self, in_flight: _InFlight) -> Iterator[tuple[Job, Answer | None]]:
        waiting, under_way = in_flight.waiting, in_flight.values
        while waiting:
            # Half of them: waiting for all would leave workers idle, waiting for each would check too often.
            self._wait_for(set(under_way), count=len(under_way) // 2 or 1)
            in_flight.end(under_way.keys() & self._inbox.keys())
            in_flight.fill()
            while waiting and waiting[0].id not in under_way:
                job = waiting.popleft()
                yield job, self.answers([job])[0]

    def refill(self) -> None:
        """Give idle workers their next jobs, without waiting; for use during long work in this process."""
        if isinstance(self.engine, RefillsWorkers):
            self.engine.refill()

    def fetch(self, client: int, context: Context) -> tree.Flat:
        """Fetch a client's whole state."""
        return self.fetch_all([client], context)[0]

    def fetch_all(self, clients: Sequence[int], context: Context) -> list[tree.Flat]:
        """Fetch the whole states of several clients."""
        jobs = [self.submit("fetch", client, context) for client in clients]
        states = []
        for client, answer in zip(clients, self.answers(jobs), strict=True):
            if answer is None or answer.state is None:
                raise PotluckError(
                    f"Client {client} {self.task.clients[client].name!r} did not hand over its state."
                )
            states.append(answer.state)
        return states

    def stop_on_error(self, failure: Failure) -> None:
        """Raise for a client's exception where `schedule.on_failure` is `stop`; notes carry its traceback."""
        if failure.kind == "error" and self.schedule.on_failure == "stop":
            info = self.task.clients[failure.client]
            failed = ClientFailed(f"{self.method_name}, client {info.index} {info.name!r}, {failure.reason}")
            if failure.trace:
                failed.add_note(failure.trace)
            raise failed

    def _wait_for(self, ids: set[int], *, count: int | None = None) -> None:
        """Receive results until those of all these jobs have arrived, or `count` of them."""
        missing = ids - self._inbox.keys()
        enough = 0 if count is None else len(ids) - count
        if len(missing) <= enough:
            return
        for result in self.engine.results():
            self._inbox[result.job] = result
            self._notify(result)
            missing.discard(result.job)
            if len(missing) <= enough:
                return
        raise RuntimeError("the engine lost a job: nothing is outstanding and an answer is missing")

    def _notify(self, result: Answer | Failure) -> None:
        job = self._under_way.pop(result.job, None)
        if job is not None:
            for listener in self.listeners:
                listener(job, result)

    def _validated(self, job: Job) -> Answer | Failure:
        """Return the result of a job; scores that contradict the job make its answer invalid."""
        result = self._inbox.pop(job.id)
        if isinstance(result, Answer):
            try:
                check_scores(result.scores, job, self.task)
            except PayloadError as error:
                return Failure(job.id, job.client, str(error), "invalid")
        return result
