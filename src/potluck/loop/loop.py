"""The one loop: every method, schedule and engine runs through it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Update
from potluck.core.samples import Samples
from potluck.core.task import ClientInfo, Context, Task
from potluck.loop import newcomers
from potluck.loop.attack import Attackers
from potluck.loop.attack.measure import outcome
from potluck.loop.callbacks import Arrival, Callback, End, Step
from potluck.loop.dispatch import Dispatcher
from potluck.loop.jobs import Answer, Engine, Failure, Job
from potluck.loop.progress import Progress
from potluck.loop.records import Scores, count_exchanges, record_step
from potluck.loop.schedule import Clock, Evaluation, Schedule
from potluck.loop.server import Server
from potluck.loop.tester import Tester


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
        *,
        clock: Clock | None = None,
        shared_test: Samples | None = None,
        attackers: Attackers | None = None,
    ) -> None:
        self.attackers = attackers
        self.newcomers: dict[int, ClientInfo] = {}
        if evaluation.newcomers:
            self.newcomers = newcomers.draw(evaluation, task)
            task = newcomers.without(task, self.newcomers)
        self.method, self.task, self.schedule = method, task, schedule
        self.evaluation, self.callbacks = evaluation, callbacks
        self.server = Server(method, task, schedule, progress)
        self.progress, self.cohort = self.server.progress, self.server.cohort
        name = type(method).__name__
        self.dispatcher = Dispatcher(engine, task, name, self.progress, schedule, clock or Clock())
        self.tester = Tester(
            self.server, self.dispatcher, evaluation, shared_test, self.newcomers, self.attackers
        )

    def run(self) -> Progress:
        """Run to the end and return where it stands then."""
        for callback in self.callbacks:
            callback.on_start(self)
        if _watching(self.callbacks, "on_arrival"):
            self.dispatcher.listeners.append(self._tell_arrival)
        while self.progress.ended < self.schedule.rounds * self.cohort:
            self.step()
        scores, state = self.tester.at_end(), self.progress.state
        joined = list[newcomers.Newcomer]()
        if self.newcomers:
            joined = newcomers.welcome(self.newcomers, self.server, self.dispatcher, self.evaluation)
        for callback in self.callbacks:
            callback.on_end(End(state, scores.test, self.fetch, scores.validation, joined, scores.attacked))
        return self.progress

    def step(self) -> None:
        """One server step."""
        started, now, context = time.perf_counter(), self.progress, self.server.context()
        self._send(context)  # 1. give work to idle clients
        arrived = self.dispatcher.collect(self.schedule.answers_per_step(len(self.server.able)))  # 2. wait
        updates, failures = self.server.accept(arrived, context)
        for failure in failures:
            self.dispatcher.stop_at(failure)
        self._tell_updates(updates, context)
        updates, failures = self.server.learn(updates, failures, context)  # 3. the server learns
        self.server.remember(arrived, updates)
        ends_round = (now.ended + len(arrived)) // self.cohort > now.ended // self.cohort
        now.step, now.ended = now.step + 1, now.ended + len(arrived)
        now.answered += len(updates)
        scores = self._end_round(context, failures) if ends_round else Scores()  # 4. look at the round
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
            notes=self._notes(context, scores),
        )
        counted = count_exchanges(self.method, arrived, updates)
        for callback in self.callbacks:  # 5. tell those who watch
            callback.on_step(
                Step(record, now.state, failures, scores.test, self.fetch, counted, scores.validation)
            )

    def _notes(self, context: Context, scores: Scores) -> dict[str, float]:
        if self.attackers is None:
            return context.notes
        return {**context.notes, **outcome(self.attackers, scores, self.evaluation.protocol)}

    def _send(self, context: Context) -> None:
        left = self.schedule.rounds * self.cohort - self.progress.ended
        # An answer may come in a later round than it was asked for; scores that are not due then are let go.
        due = not self.schedule.synchronous or self.evaluation.due(context.round, context.rounds)
        tests = self.evaluation.tests_in_training(self.task) if due else ()
        for index in self.dispatcher.choose(self.server.able, left):
            info = self.task.clients[index]
            message = self.server.message(info, context)
            for callback in _watching(self.callbacks, "on_send"):
                callback.on_send(info, message.copy(), context.round)
            self.dispatcher.train(index, message, context, tests)

    def _tell_arrival(self, job: Job, result: Answer | Failure) -> None:
        samples, failure = (0, result) if isinstance(result, Failure) else (result.trained_samples, None)
        told = Arrival(job.kind, job.client, job.round, samples, failure)
        for callback in _watching(self.callbacks, "on_arrival"):
            callback.on_arrival(told)

    def _tell_updates(self, updates: Sequence[Update[Any]], context: Context) -> None:
        for callback in _watching(self.callbacks, "on_update"):
            for update in updates:
                callback.on_update(replace(update, payload=update.payload.copy()), context.round)

    def _end_round(self, context: Context, failures: Sequence[Failure]) -> Scores:
        now, wanted = self.progress, self.schedule.min_clients
        if now.answered < wanted:
            why = "; ".join(f"client {failure.client}: {failure.reason}" for failure in failures[:3])
            raise TooFewClients(
                f"Round {context.round} ended with {now.answered} usable answers, fewer than "
                f"schedule.min_clients = {wanted} ({why or 'nobody failed: lower schedule.min_clients'})."
            )
        due = self.evaluation.due(context.round, context.rounds)
        scores = self.tester.after_round(context) if due else Scores()
        now.answered = 0
        if self.schedule.synchronous:
            # Who answers in an asynchronous round is a matter of speed and luck, and a client's model changes in its
            # own jobs only: there the latest score of every client counts, or rounds would be means over other clients.
            now.scores = {}
        return scores

    def fetch(self, client: int) -> dict[str, Any]:
        """A client's whole state as plain nested tensors: model, private, modules, optimizers."""
        state: dict[str, Any] = tree.unflatten(self.dispatcher.fetch(client, self.server.context()))
        return state


def _watching(callbacks: Sequence[Callback], hook: str) -> list[Callback]:
    """The callbacks that look at something: copies are made for them alone."""
    return [one for one in callbacks if getattr(type(one), hook) is not getattr(Callback, hook)]
