"""Gives jobs their numbers, hands them to the engine and finds the answer to each."""

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
from potluck.loop.abreast import Abreast, leave_out, place_of
from potluck.loop.jobs import Answer, Engine, Failure, Feeding, Job, Kind, Test
from potluck.loop.letter import check_scores
from potluck.loop.progress import Flight, Progress
from potluck.loop.schedule import Clock, Schedule

IN_TRANSIT = 1 << 26
"""How many numbers of messages may wait at once when all clients are asked: ten thousand models would not fit."""


class ClientFailed(PotluckError):
    """A client raised, and the run was told to stop at that."""


@dataclass
class _Transit:
    """Jobs under way, submitted as they are taken from `coming`: `numbers` has what the messages of each hold."""

    coming: Iterator[Job]
    waiting: deque[Job] = field(default_factory=deque)
    numbers: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def fill(self) -> None:
        """Submit as long as there is room."""
        while self.total <= IN_TRANSIT and (job := next(self.coming, None)) is not None:
            self.waiting.append(job)
            self.numbers[job.id] = 0 if job.message is None else job.message.numbers()
            self.total += self.numbers[job.id]

    def end(self, jobs: Iterable[int]) -> None:
        """These have their answers."""
        for job in jobs:
            self.total -= self.numbers.pop(job)


class Dispatcher:
    """The way to the clients and back; the order in which an engine delivers does not matter here."""

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
        self._everybody: Abreast | None = None
        self.listeners: list[Callable[[Job, Answer | Failure], None]] = []
        """Who is told of every result as it comes in; nothing may depend on the order."""

    # -- training jobs on the virtual clock -----------------------------------------------------------------

    def choose(self, able: Sequence[int], left: int) -> list[int]:
        """The clients to send work to now: as many as have a place, among those that are free and there."""
        now = self.progress
        busy = {flight.job.client for flight in now.flights}
        room = min(self.schedule.at_work(len(able)), left) - len(busy)
        if room <= 0:
            return []
        now.draws += 1
        rng, lead = generator(self.task.seed, "sampling", now.draws), self.schedule.may_lead(len(able))
        if self.schedule.order:
            free = (index for index in self.schedule.listed(now.draws) if index not in busy)
            return sorted(index for index in free if place_of(index, able) is not None)[:room]
        there = None if self.clock.available is None else self._there(able, busy, self.clock.available)
        if not lead:
            idle = leave_out(busy, able) if busy else able
            return self.schedule.draw(idle if there is None else there, room, rng)
        if there is not None:  # who is away keeps nobody waiting
            return self._abreast(Abreast(sorted((*there, *busy)), now.numbers, lead), busy, room, rng)
        self._everybody = self._everybody or Abreast(able, now.numbers, lead)
        return self._abreast(self._everybody, busy, room, rng)

    def _there(
        self, able: Sequence[int], busy: Collection[int], available: Callable[[ClientInfo, int], bool]
    ) -> list[int]:
        """Who is free and there: the only thing that is asked of everybody at a draw, and only where some may be away.

        Where nobody is there, whoever is free comes back for the job.
        """
        clients, draw = self.task.clients, self.progress.draws
        free = [index for index in able if index not in busy]
        return [index for index in free if available(clients[index], draw)] or free

    def _abreast(self, abreast: Abreast, busy: Collection[int], room: int, rng: torch.Generator) -> list[int]:
        """By lot; whoever is too far ahead of the one with the fewest jobs waits until that one is asked again."""
        chosen: list[int] = []
        while len(chosen) < room and len(close := abreast.close((*busy, *chosen))):
            drawn = self.schedule.draw(close, room - len(chosen), rng)
            for index in drawn:
                abreast.ask(index)
            chosen += drawn
        return sorted(chosen)

    def train(self, client: int, message: Payload, context: Context, tests: tuple[Test, ...]) -> None:
        """Send a client to work."""
        now, info = self.progress, self.task.clients[client]
        seconds = self.clock.duration(info, now.numbers.get(client, 0), message)
        job = self.submit("train", client, context, message, tests=tests)
        now.numbers[client] = job.number + 1
        now.flights.append(Flight(job, now.step, now.clock + seconds))

    def collect(self, wanted: int) -> list[Flight]:
        """The next flights to end, until enough of them brought an answer or nobody is at work."""
        now, synchronous, usable = self.progress, self.schedule.synchronous, 0
        began = now.clock
        closes = began + self.schedule.patience
        arrived: list[Flight] = []
        while now.flights and (usable < wanted or synchronous):
            flight = self._next_flight()
            # A synchronous round ends at its deadline or with enough answers; the rest come too late for it.
            if synchronous and (usable >= wanted or flight.finish > closes):
                if isinstance(flight.result, Answer):  # who failed did not come late
                    late = f"answered after {flight.finish - began:.1f} virtual seconds of waiting"
                    flight.result = Failure(flight.job.id, flight.job.client, late, "late")
            else:
                now.clock = max(now.clock, flight.finish)
            usable += isinstance(flight.result, Answer)
            arrived.append(flight)
        if usable < wanted and synchronous and math.isfinite(closes):
            now.clock = closes
        return arrived

    def _next_flight(self) -> Flight:
        """The flight that ends next: first on the virtual clock, or first to answer on a real-time engine."""
        flights = self.progress.flights
        if self.engine.realtime:
            self._wait_for({flight.job.id for flight in flights}, wanted=1)
            first = next(flight for flight in flights if flight.job.id in self._inbox)
        else:
            first = self._first_to_end()
        self.land(first)
        flights.remove(first)
        return first

    def _first_to_end(self) -> Flight:
        """How long an upload takes is known only once the answer is there, so whoever seems first is made to land.

        Then it either still is the first, or another one, which could not be known to be earlier before.
        """
        while True:
            first = min(self.progress.flights, key=lambda flight: (flight.finish, flight.job.id))
            if first.result is not None:
                return first
            self.land(first)

    def land(self, flight: Flight) -> None:
        """Wait until this flight's result is there, and add the time of its upload."""
        if flight.result is None:
            self._wait_for({flight.job.id})
            flight.result = self._believed(flight.job)
            if isinstance(flight.result, Answer):
                info = self.task.clients[flight.job.client]
                flight.finish += self.clock.upload(info, flight.result.bytes_up)

    def land_all(self) -> None:
        """Wait for every client at work."""
        for flight in self.progress.flights:
            self.land(flight)

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
    ) -> Job:
        """Number a job and hand it to the engine."""
        now = self.progress
        now.jobs += 1
        number = now.numbers.get(client, 0)
        about = (context.round, context.rounds, message, tests, state, details, epochs, now.step)
        job = Job(now.jobs, kind, client, number, *about)
        if self.listeners:
            self._under_way[job.id] = replace(job, message=None, state=None)
        self.engine.submit(job)
        return job

    def answers(self, jobs: Sequence[Job]) -> list[Answer | None]:
        """Wait for all of these jobs; a failed one gives None, or stops the run if that is asked for."""
        self._wait_for({job.id for job in jobs})
        answers: list[Answer | None] = []
        for job in jobs:
            result = self._believed(job)
            if isinstance(result, Failure):
                self.stop_at(result)
            answers.append(result if isinstance(result, Answer) else None)
        return answers

    def exchange(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Answer | None]]:
        """The answers to jobs, in their order. The first are submitted now, others as those before them end.

        As many are under way at once as their messages leave room for.
        """
        transit = _Transit(iter(jobs))
        transit.fill()
        return self._through(transit)

    def _through(self, transit: _Transit) -> Iterator[tuple[Job, Answer | None]]:
        waiting, under_way = transit.waiting, transit.numbers
        while waiting:
            # Half of them: who waited for all would leave workers without a job, who waited for each would often look.
            self._wait_for(set(under_way), wanted=len(under_way) // 2 or 1)
            transit.end(under_way.keys() & self._inbox.keys())
            transit.fill()
            while waiting and waiting[0].id not in under_way:
                job = waiting.popleft()
                yield job, self.answers([job])[0]

    def feed(self) -> None:
        """Keep an engine's workers at work in the middle of something else; takes no time."""
        if isinstance(self.engine, Feeding):
            self.engine.feed()

    def fetch(self, client: int, context: Context) -> tree.Flat:
        """A client's whole state, as it is saved."""
        return self.fetch_all([client], context)[0]

    def fetch_all(self, clients: Sequence[int], context: Context) -> list[tree.Flat]:
        """The whole states of several clients, which an engine may bring at the same time."""
        jobs = [self.submit("fetch", client, context) for client in clients]
        states = []
        for client, answer in zip(clients, self.answers(jobs), strict=True):
            if answer is None or answer.state is None:
                raise PotluckError(
                    f"Client {client} {self.task.clients[client].name!r} did not hand over its state."
                )
            states.append(answer.state)
        return states

    def stop_at(self, failure: Failure) -> None:
        """Stop the run at a client's exception, if so asked, with everything needed to find it."""
        if failure.kind == "error" and self.schedule.on_failure == "stop":
            info = self.task.clients[failure.client]
            failed = ClientFailed(f"{self.method_name}, client {info.index} {info.name!r}, {failure.reason}")
            if failure.trace:
                failed.add_note(failure.trace)
            raise failed

    def _wait_for(self, ids: set[int], *, wanted: int | None = None) -> None:
        """Take answers in until those to all of these jobs are there, or as many of them as are wanted."""
        missing = ids - self._inbox.keys()
        enough = 0 if wanted is None else len(ids) - wanted
        if len(missing) <= enough:
            return
        for result in self.engine.results():
            self._inbox[result.job] = result
            self._tell(result)
            missing.discard(result.job)
            if len(missing) <= enough:
                return
        raise RuntimeError("the engine lost a job: nothing is outstanding and an answer is missing")

    def _tell(self, result: Answer | Failure) -> None:
        job = self._under_way.pop(result.job, None)
        if job is not None:
            for listener in self.listeners:
                listener(job, result)

    def _believed(self, job: Job) -> Answer | Failure:
        """The result that came for a job; scores that cannot be make its answer an invalid one."""
        result = self._inbox.pop(job.id)
        if isinstance(result, Answer):
            try:
                check_scores(result.scores, job, self.task)
            except PayloadError as error:
                return Failure(job.id, job.client, str(error), "invalid")
        return result
