"""The training loop of every method, schedule and engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from potluck.attacks import Attackers
from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Update
from potluck.core.samples import Samples
from potluck.core.task import ClientInfo, Context, Task
from potluck.loop.callbacks import Arrival, Callback, End, Step
from potluck.loop.dispatch import Dispatcher
from potluck.loop.evaluation import Evaluator, attack_metrics, safeguard_metrics
from potluck.loop.newcomers import Newcomer, evaluate_newcomers, hide_samples
from potluck.loop.records import Progress, Scores, count_exchanges, record_step
from potluck.loop.schedule import Clock, Evaluation, Schedule
from potluck.loop.secure_sums import SecureSumServer
from potluck.loop.server import Server
from potluck.privacy.settings import Privacy
from potluck.wire.jobs import Answer, Engine, Failure, Job


class TooFewClients(PotluckError):
    """A round ended with fewer answers than `schedule.min_clients`."""


class Loop:
    """Runs server steps until all rounds are done.

    `newcomers` are kept out of training and evaluated when it is over (see `potluck.loop.newcomers`); clients of
    `schedule.exclude` are kept out of both.
    """

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
        newcomers: Mapping[int, ClientInfo] | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        self.attackers, self.newcomers = attackers, dict(newcomers or {})
        excluded = {index: task.clients[index] for index in schedule.exclude}
        self.absent = {**self.newcomers, **excluded}
        task = hide_samples(task, self.absent) if self.absent else task
        self.method, self.task, self.schedule = method, task, schedule
        self.evaluation, self.callbacks = evaluation, callbacks
        self.server = Server(method, task, schedule, progress)
        self.progress, self.cohort = self.server.progress, self.server.cohort
        name = type(method).__name__
        self.dispatcher = Dispatcher(engine, task, name, self.progress, schedule, clock or Clock())
        self.sums: SecureSumServer | None = None
        if privacy is not None and privacy.secure_sums:
            self.sums = SecureSumServer(method, self.dispatcher, privacy, real=engine.remote)
        self.tester = Evaluator(
            self.server, self.dispatcher, evaluation, shared_test, self.absent, self.attackers
        )

    def run(self) -> Progress:
        """Run to the end and return the last progress."""
        for callback in self.callbacks:
            callback.on_start(self)
        if _watching(self.callbacks, "on_arrival"):
            self.dispatcher.listeners.append(self._report_arrival)
        while self.progress.ended < self.schedule.rounds * self.cohort:
            self.step()
        scores, state = self.tester.at_end(), self.progress.state
        joined = list[Newcomer]()
        if self.newcomers:
            joined = evaluate_newcomers(self.newcomers, self.server, self.dispatcher, self.evaluation)
        for callback in self.callbacks:
            callback.on_end(End(state, scores.test, self.fetch, scores.validation, joined, scores.attacked))
        return self.progress

    def step(self) -> None:
        """Take one server step."""
        started, now, context = time.perf_counter(), self.progress, self.server.context()

        # 1. Send jobs to idle clients.
        self._send(context)

        # 2. Wait for as many answers as a step needs.
        arrived = self.dispatcher.collect(self.schedule.answers_per_step(len(self.server.eligible)))

        # 3. Open secure sums, and check the answers.
        sums = self.sums.open(arrived, context) if self.sums is not None else {}
        accepted = self.server.accept(arrived, context, sums)
        for failure in accepted.failures:
            self.dispatcher.stop_on_error(failure)
        now.scores.update(accepted.scores)
        self._report_updates(accepted.updates, context)

        # 4. Aggregate.
        updates, failures = self.server.aggregate(accepted.updates, accepted.failures, context, sums)
        self.server.keep_latest(arrived, updates)
        ends_round = (now.ended + len(arrived)) // self.cohort > now.ended // self.cohort
        now.step, now.ended = now.step + 1, now.ended + len(arrived)
        now.answered += len(updates)

        # 5. Evaluate, at the end of a round.
        scores = self._end_round(context, failures) if ends_round else Scores()

        # 6. Record the step and inform the callbacks.
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
        counts = count_exchanges(self.method, arrived, updates)
        step = Step(record, now.state, failures, scores.test, self.fetch, counts, scores.validation)
        for callback in self.callbacks:
            callback.on_step(step)

    def _notes(self, context: Context, scores: Scores) -> dict[str, float]:
        notes = {**context.notes, **safeguard_metrics(scores, self.evaluation.protocol)}
        if self.attackers is None:
            return notes
        return {**notes, **attack_metrics(self.attackers, scores, self.evaluation.protocol)}

    def _send(self, context: Context) -> None:
        jobs_left = self.schedule.rounds * self.cohort - self.progress.ended
        # An answer may arrive in a later round than its job was sent in; scores that are not due then are dropped.
        due = not self.schedule.synchronous or self.evaluation.due(context.round, context.rounds)
        tests = self.evaluation.tests_in_training(self.task) if due else ()
        for index in self.dispatcher.choose(self.server.eligible, jobs_left):
            info = self.task.clients[index]
            message = self.server.message(info, context)
            for callback in _watching(self.callbacks, "on_send"):
                callback.on_send(info, message.copy(), context.round)
            self.dispatcher.train(index, message, context, tests)

    def _report_arrival(self, job: Job, result: Answer | Failure) -> None:
        if isinstance(result, Failure):
            arrival = Arrival(job.kind, job.client, job.round, failure=result)
        else:
            arrival = Arrival(
                job.kind,
                job.client,
                job.round,
                result.trained_samples,
                seconds=result.seconds,
                processor_seconds=result.processor_seconds,
            )
        for callback in _watching(self.callbacks, "on_arrival"):
            callback.on_arrival(arrival)

    def _report_updates(self, updates: Sequence[Update[Any]], context: Context) -> None:
        for callback in _watching(self.callbacks, "on_update"):
            for update in updates:
                callback.on_update(replace(update, payload=update.payload.copy()), context.round)

    def _end_round(self, context: Context, failures: Sequence[Failure]) -> Scores:
        now, minimum = self.progress, self.schedule.min_clients
        if now.answered < minimum:
            reason = "; ".join(f"client {failure.client}: {failure.reason}" for failure in failures[:3])
            if failures and all("not finite" in failure.reason for failure in failures):
                reason += "; training diverged: lower training.lr"
            raise TooFewClients(
                f"Round {context.round} ended with {now.answered} usable answers, fewer than "
                f"schedule.min_clients = {minimum} ({reason or 'no client failed: lower schedule.min_clients'})."
            )
        due = self.evaluation.due(context.round, context.rounds)
        scores = self.tester.after_round(context) if due else Scores()
        now.answered = 0
        if self.schedule.synchronous:
            # In asynchronous runs the latest score of every client counts: which clients answer in a round depends on
            # their speed, and a client's model changes in its own jobs only.
            now.scores = {}
        return scores

    def fetch(self, client: int) -> dict[str, Any]:
        """Fetch a client's whole state as nested tensors: model, private, modules, optimizers."""
        state: dict[str, Any] = tree.unflatten(self.dispatcher.fetch(client, self.server.context()))
        return state


def _watching(callbacks: Sequence[Callback], hook: str) -> list[Callback]:
    """Return the callbacks that override a hook; copies are made only for them."""
    return [
        callback for callback in callbacks if getattr(type(callback), hook) is not getattr(Callback, hook)
    ]
