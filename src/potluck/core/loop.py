"""The one loop: every method, schedule and engine runs through it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from potluck.core import toolkit, tree
from potluck.core.callback import Callback, End, Step
from potluck.core.desk import Desk, Flight, Progress
from potluck.core.errors import PotluckError
from potluck.core.evaluation import Evaluation, Protocol, score_outputs
from potluck.core.job import Answer, Engine, Failure, Job, Test
from potluck.core.method import Method, Update, payload_types
from potluck.core.payload import Payload, PayloadError
from potluck.core.random import generator, seeded
from potluck.core.records import ClientScore, record_step
from potluck.core.robust import averaging
from potluck.core.schedule import Schedule
from potluck.core.schema import check_payload
from potluck.core.task import CPU, ClientInfo, Context, Task

IN_TRANSIT = 1 << 26
"""How many numbers of messages may wait at once when all clients are tested: ten thousand models would not fit."""


class TooFewClients(PotluckError):
    """A round ended with fewer answers than the schedule asks for."""


class Loop:
    """Server steps until the rounds are done: send, collect, fold in, evaluate, tell the callbacks."""

    def __init__(
        self,
        method: Method[Any, Any, Any],
        task: Task,
        engine: Engine,
        schedule: Schedule,
        evaluation: Evaluation,
        callbacks: Sequence[Callback] = (),
        progress: Progress | None = None,
    ) -> None:
        self.method, self.task, self.schedule = method, task, schedule
        self.evaluation, self.callbacks = evaluation, callbacks
        self.answer_type = payload_types(method)[1]
        self.able = [info.index for info in task.clients if info.samples > 0]
        self.cohort = schedule.asked(len(self.able))
        self.progress = progress or Progress(self.initial_state())
        self.desk = Desk(engine, task, type(method).__name__, self.progress, schedule)

    def run(self) -> Progress:
        """Run to the end and return where it stands then."""
        for callback in self.callbacks:
            callback.on_start(self)
        while self.progress.ended < self.schedule.rounds * self.cohort:
            self.step()
        scores = self._ask([info.index for info in self.task.clients], self.schedule.rounds, final=True)
        for callback in self.callbacks:
            callback.on_end(End(self.progress.state, scores, self.fetch))
        return self.progress

    def step(self) -> None:
        """One server step."""
        started, now, context = time.perf_counter(), self.progress, self.context()
        self._send(context)  # 1. give work to idle clients
        arrived = self._collect()  # 2. wait for as many answers as make a step
        updates, failures = self._accept(arrived, context)
        updates, failures = self._learn(updates, failures, context)  # 3. the server learns
        round_is_full = (now.ended + len(arrived)) // self.cohort > now.ended // self.cohort
        now.step, now.ended, now.answered = (
            now.step + 1,
            now.ended + len(arrived),
            now.answered + len(updates),
        )
        scores: list[ClientScore] = []
        if round_is_full:  # 4. look at the round
            self._check_turnout(context, failures)
            if self.evaluation.due(context.round, context.rounds):
                scores = self._evaluate(context)
            now.answered, now.scores = 0, {}
        record = record_step(
            step=now.step,
            round_number=context.round,
            protocol=self.evaluation.protocol,
            arrived=arrived,
            updates=updates,
            failures=failures,
            scores=scores,
            seconds=time.perf_counter() - started,
            virtual_seconds=now.clock,
        )
        step = Step(record, now.state, updates, failures, scores, self.fetch)
        for callback in self.callbacks:  # 5. tell those who watch
            callback.on_step(step)

    def initial_state(self) -> Any:
        """The server state before the first step."""
        with seeded(self.task.seed, "torch", "init_server"):
            return self.method.init_server(Context(self.task, 1, self.schedule.rounds, self.task.seed))

    def context(self) -> Context:
        """What server functions may know now; the round is the one that the next ended job belongs to."""
        number = min(self.progress.ended // self.cohort + 1, self.schedule.rounds)
        return Context(self.task, number, self.schedule.rounds, self.task.seed, self.progress.step + 1)

    def fetch(self, client: int) -> dict[str, Any]:
        """A client's whole state as plain nested tensors: model, private, modules, optimizers."""
        state: dict[str, Any] = tree.unflatten(self.desk.fetch(client, self.context()))
        return state

    # -- the parts of a step --------------------------------------------------------------------------

    def _send(self, context: Context) -> None:
        now = self.progress
        busy = {flight.job.client for flight in now.flights}
        left = self.schedule.rounds * self.cohort - now.ended
        room = min(self.schedule.at_work(len(self.able)), left) - len(busy)
        if room <= 0:
            return
        now.draws += 1
        idle = self._idle(busy)
        # An answer may come in a later round than it was asked for; scores that are not due then are let go.
        due = not self.schedule.synchronous or self.evaluation.due(context.round, context.rounds)
        local = due and "local" in self.evaluation.protocols
        for index in self.schedule.draw(idle, room, generator(self.task.seed, "sampling", now.draws)):
            info = self.task.clients[index]
            message = self._broadcast(info, context)
            for callback in self.callbacks:
                callback.on_send(info, message, context.round)
            seconds = self.schedule.duration(info, now.numbers.get(index, 0), message)
            job = self.desk.submit("train", index, context, message, tests=("own",) if local else ())
            now.numbers[index] = job.number + 1
            now.flights.append(Flight(job, now.step, now.clock + seconds))

    def _idle(self, busy: set[int]) -> list[int]:
        """Clients that are free and there; where nobody is there, whoever is free comes back for the job."""
        free = [index for index in self.able if index not in busy]
        draw, clients = self.progress.draws, self.task.clients
        return [index for index in free if self.schedule.available(clients[index], draw)] or free

    def _broadcast(self, info: ClientInfo, context: Context) -> Payload:
        with self._seeded("broadcast"):
            message: Payload = self.method.broadcast(self.progress.state, info, context)
        return message.copy().to(CPU)

    def _collect(self) -> list[Flight]:
        """The next flights to end, until enough of them brought an answer or nobody is at work."""
        now = self.progress
        wanted, usable = self.schedule.answers_per_step(len(self.able)), 0
        began = now.clock
        closes = began + self.schedule.deadline
        arrived: list[Flight] = []
        while now.flights and (usable < wanted or self.schedule.synchronous):
            flight = self.desk.next_flight()
            # A synchronous round ends at its deadline or with enough answers; the rest come too late for it.
            if self.schedule.synchronous and (usable >= wanted or flight.finish > closes):
                if isinstance(flight.result, Answer):  # who failed did not come late
                    late = f"answered after {flight.finish - began:.1f} virtual seconds of waiting"
                    flight.result = Failure(flight.job.id, flight.job.client, late, "late")
            else:
                now.clock = max(now.clock, flight.finish)
            usable += isinstance(flight.result, Answer)
            arrived.append(flight)
        if usable < wanted and self.schedule.synchronous and math.isfinite(closes):
            now.clock = closes
        return arrived

    def _accept(self, arrived: Sequence[Flight], context: Context) -> tuple[list[Update[Any]], list[Failure]]:
        """Checked answers in the order of client ids, and everything that was no use, with the reason."""
        updates: list[Update[Any]] = []
        failures: list[Failure] = []
        for flight in arrived:
            result, info = flight.result, self.task.clients[flight.job.client]
            if isinstance(result, Answer) and result.payload is not None:
                try:
                    payload = self._check(result.payload, info, context)
                except PayloadError as error:
                    result = Failure(flight.job.id, info.index, str(error), "invalid")
                else:
                    stale = self.progress.step - flight.step
                    updates.append(Update(info, payload, stale, self.schedule.weight(stale)))
                    if "own" in result.scores:
                        self.progress.scores[info.index] = result.scores["own"]
            if isinstance(result, Failure):
                self.desk.raise_if_told(result, info)
                failures.append(result)
        updates = toolkit.by_client(updates)
        for update in updates:
            for callback in self.callbacks:
                callback.on_update(update, context.round)
        return updates, failures

    def _check(self, payload: Payload, info: ClientInfo, context: Context) -> Payload:
        """An answer on the server's device, if it is what the method declares."""
        limit = int(self.schedule.max_payload_mb * 2**20)
        check_payload(payload, self.answer_type, self.task, info, max_bytes=limit)
        self.method.check_answer(payload, info, context)
        return payload.to(self.task.device)

    def _learn(
        self, updates: list[Update[Any]], failures: list[Failure], context: Context
    ) -> tuple[list[Update[Any]], list[Failure]]:
        """Let the server fold the answers in; if that would leave it without finite numbers, none counts."""
        now = self.progress
        if not updates:
            return updates, failures
        before = self._copy_state()
        with self._seeded("server"), averaging(self.schedule.averaging):
            now.state = self.method.server(now.state, updates, context)
        if tree.is_finite(now.state):
            return updates, failures
        if before is None:
            raise PotluckError(
                f"The server's state of {type(self.method).__name__} is no longer finite after round "
                f"{context.round}, and it cannot be put back; keep tensors, modules and numbers in the state."
            )
        now.state = tree.unflatten(before, now.state)
        reason = "with this round's answers the server's state would no longer be finite"
        return [], failures + [Failure(-1, one.client.index, reason, "invalid") for one in updates]

    def _copy_state(self) -> tree.Flat | None:
        """The state before the server learns, which many do in place; None if it holds what cannot be copied."""
        try:
            return tree.flatten(self.progress.state)
        except TypeError:
            return None

    def _check_turnout(self, context: Context, failures: Sequence[Failure]) -> None:
        answered, wanted = self.progress.answered, self.schedule.min_clients
        if answered < wanted:
            why = "; ".join(f"client {failure.client}: {failure.reason}" for failure in failures[:3])
            raise TooFewClients(
                f"Round {context.round} ended with {answered} usable answers, fewer than "
                f"schedule.min_clients = {wanted} ({why or 'nobody failed: lower schedule.min_clients'})."
            )

    # -- evaluation -----------------------------------------------------------------------------------

    def _evaluate(self, context: Context) -> list[ClientScore]:
        scores: list[ClientScore] = []
        for index, score in sorted(self.progress.scores.items()):
            scores.append(ClientScore(context.round, self.task.clients[index], "local", score))
        scores += self._ask(self.evaluation.population(self.task), context.round, final=False)
        samples = self.evaluation.shared_test
        if "global" in self.evaluation.protocols and samples is not None:
            with self._seeded("predict_server"):
                predictor = self.method.predict_server(self.progress.state, context)
                if predictor is not None:
                    score = score_outputs(toolkit.outputs(predictor, samples, self.task))
                    scores.append(ClientScore(context.round, None, "global", score))
        return scores

    def _ask(self, clients: Sequence[int], round_number: int, *, final: bool) -> list[ClientScore]:
        """Test clients by jobs of their own after a round; the last time every client by the chosen protocol."""
        tests, received, context = self.evaluation.tests(), True, self.context()
        if final:
            shared = self.evaluation.protocol in ("shared", "global")
            tests, received = ("shared" if shared else "own",), self.evaluation.protocol != "local"
        if not tests:
            return []
        protocols: dict[Test, Protocol] = {"own": "received" if received else "local", "shared": "shared"}
        return [
            ClientScore(round_number, self.task.clients[index], protocols[test], score, final)
            for index, answer in self._exchange(clients, context, tests, received)
            for test, score in (answer.scores if answer else {}).items()
        ]

    def _exchange(
        self, clients: Sequence[int], context: Context, tests: tuple[Test, ...], received: bool
    ) -> Iterator[tuple[int, Answer | None]]:
        """Evaluation jobs and their answers, as many at once as their messages leave room for."""
        jobs: list[Job] = []
        numbers = 0
        for index in clients:
            message = self._broadcast(self.task.clients[index], context) if received else None
            jobs.append(self.desk.submit("evaluate", index, context, message, tests=tests))
            numbers += 0 if message is None else message.numbers()
            if numbers > IN_TRANSIT or index == clients[-1]:
                for job, answer in zip(jobs, self.desk.answers(jobs), strict=True):
                    yield job.client, answer
                jobs, numbers = [], 0

    def _seeded(self, purpose: str) -> AbstractContextManager[None]:
        return seeded(self.task.seed, "torch", purpose, self.progress.step)
