"""The loop's desk: gives jobs their numbers, hands them to the engine and sorts what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.job import Answer, Engine, Failure, Job, Kind, Score, Test
from potluck.core.payload import Payload
from potluck.core.schedule import Schedule
from potluck.core.task import ClientInfo, Context, Task


class ClientFailed(PotluckError):
    """A client raised, and the run was told to stop at that."""


@dataclass
class Flight:
    """A training job under way: when it was sent, when it ends on the virtual clock, and what came back."""

    job: Job
    step: int
    finish: float
    result: Answer | Failure | None = None


@dataclass
class Progress:
    """All that the loop must know to go on from where it stands."""

    state: Any
    step: int = 0
    ended: int = 0
    clock: float = 0.0
    jobs: int = 0
    draws: int = 0
    numbers: dict[int, int] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    answered: int = 0
    scores: dict[int, Score] = field(default_factory=dict)


class Desk:
    """Sends jobs and finds the answer to each; the order in which an engine delivers does not matter here."""

    def __init__(
        self, engine: Engine, task: Task, method_name: str, progress: Progress, schedule: Schedule
    ) -> None:
        self.engine, self.task, self.progress = engine, task, progress
        self.method_name, self.schedule = method_name, schedule
        self._inbox: dict[int, Answer | Failure] = {}

    def submit(
        self,
        kind: Kind,
        client: int,
        context: Context,
        message: Payload | None = None,
        *,
        tests: tuple[Test, ...] = (),
        state: tree.Flat | None = None,
    ) -> Job:
        """Number a job and hand it to the engine."""
        now = self.progress
        now.jobs += 1
        number = now.numbers.get(client, 0)
        job = Job(now.jobs, kind, client, number, context.round, context.rounds, message, tests, state)
        self.engine.submit(job)
        return job

    def answers(self, jobs: Sequence[Job]) -> list[Answer | None]:
        """Wait for all of these jobs; a failed one gives None, or stops the run if so told."""
        self._wait_for({job.id for job in jobs})
        answers: list[Answer | None] = []
        for job in jobs:
            result = self._inbox.pop(job.id)
            if isinstance(result, Failure):
                self.raise_if_told(result, self.task.clients[job.client])
            answers.append(result if isinstance(result, Answer) else None)
        return answers

    def next_flight(self) -> Flight:
        """The flight that ends next: first on the virtual clock, or first to answer on a real-time engine."""
        flights = self.progress.flights
        if self.engine.realtime:
            self._wait_for({flight.job.id for flight in flights}, first=True)
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
            flight.result = self._inbox.pop(flight.job.id)
            if isinstance(flight.result, Answer):
                info = self.task.clients[flight.job.client]
                flight.finish += self.schedule.upload(info, flight.result.bytes_up)

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

    def raise_if_told(self, failure: Failure, info: ClientInfo) -> None:
        """Stop the run at a client's exception, with everything needed to find it."""
        if failure.kind == "error" and self.schedule.on_failure == "stop":
            failed = ClientFailed(f"{self.method_name}, client {info.index} {info.name!r}, {failure.reason}")
            if failure.trace:
                failed.add_note(failure.trace)
            raise failed

    def _wait_for(self, ids: set[int], *, first: bool = False) -> None:
        """Take answers in until those to all of these jobs are there, or the `first` of them."""
        missing = ids - self._inbox.keys()
        enough = len(ids) - 1 if first else 0
        if len(missing) <= enough:
            return
        for result in self.engine.results():
            self._inbox[result.job] = result
            missing.discard(result.job)
            if len(missing) <= enough:
                return
        raise RuntimeError("the engine lost a job: nothing is outstanding and an answer is missing")
