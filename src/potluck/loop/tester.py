"""Tests of clients after a round and at the end, by jobs of their own where training did not test them already."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from potluck.core.method import Predictor
from potluck.core.samples import Samples, outputs
from potluck.core.task import Context
from potluck.loop.attack import Attackers
from potluck.loop.dispatch import Dispatcher
from potluck.loop.jobs import Test
from potluck.loop.records import ClientScore, Scores
from potluck.loop.schedule import Evaluation, Protocol
from potluck.loop.score import Score, score_outputs
from potluck.loop.server import Server

Found = Iterable[tuple[int, Mapping[Test, Score]]]
"""Clients with the outcome of each of their tests."""


@dataclass(frozen=True)
class Tester:
    """Asks clients, or the server's own model, for scores."""

    server: Server
    dispatcher: Dispatcher
    evaluation: Evaluation
    shared_test: Samples | None = None
    newcomers: Collection[int] = ()
    attackers: Attackers | None = None

    def after_round(self, context: Context) -> Scores:
        """Every score of a round: the local ones that came with answers, then those of the other protocols."""
        task, number = self.server.task, context.round
        local = self._scores(sorted(self.server.progress.scores.items()), number, "local")
        tests = self.evaluation.tests(task)
        asked = self._ask(self._population, tests, received=True) if tests else ()
        own = self._global(context)  # while clients are at it
        others = self._scores(asked, number, "received")
        return Scores(
            [*local.test, *others.test, *own.test],
            [*local.validation, *others.validation],
            [*local.attacked, *others.attacked, *own.attacked],
        )

    @functools.cached_property
    def _population(self) -> list[int]:
        """Who is asked after a round; a matter of nothing that a round changes."""
        return self.evaluation.population(self.server.task, self.newcomers)

    def at_end(self) -> Scores:
        """Every client that takes part once, by the chosen protocol."""
        local, task = self.evaluation.protocol == "local", self.server.task
        everybody = [info.index for info in task.clients if info.index not in self.newcomers]
        tests = self.evaluation.last_tests(task)
        asked = self._ask(everybody, tests, received=not local, details=True)
        return self._scores(asked, self.server.schedule.rounds, "local" if local else "received", final=True)

    def _global(self, context: Context) -> Scores:
        """The score of the server's own model, where it is asked for and there is one."""
        if "global" not in self.evaluation.protocols or self.shared_test is None:
            return Scores()
        predictor, task = self.server.predictor(context), self.server.task
        if predictor is None:
            return Scores()
        wished = None if self.attackers is None else self.attackers.wished(self.shared_test, task)
        sets = {"test": self.shared_test, "attacked": wished}
        found = {
            name: [ClientScore(context.round, None, "global", self._score(predictor, samples))]
            for name, samples in sets.items()
            if samples is not None and len(samples)
        }
        return Scores(**found)

    def _score(self, predictor: Predictor, samples: Samples) -> Score:
        """A test of the server's own model, with a look at the clients' between batches."""

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in outputs(predictor, samples, self.server.task):
                self.dispatcher.feed()
                yield batch

        return score_outputs(batches())

    def _scores(self, found: Found, number: int, own: Protocol, *, final: bool = False) -> Scores:
        """Scores by what they are of; `own` is the protocol of tests on clients' own samples."""
        task, test = self.server.task, list[ClientScore]()
        others: dict[Test, list[ClientScore]] = {"validation": [], "attacked": []}
        chosen: Protocol = "shared" if self.evaluation.protocol == "global" else self.evaluation.protocol
        for index, scores in found:
            for kind, score in scores.items():
                aimed: Protocol = "shared" if "shared" in scores else own
                protocol = {"own": own, "shared": "shared", "validation": chosen, "attacked": aimed}[kind]
                entry = ClientScore(number, task.clients[index], protocol, score, final)
                others.get(kind, test).append(entry)
        return Scores(test, **others)

    def _ask(
        self, clients: Iterable[int], tests: tuple[Test, ...], *, received: bool, details: bool = False
    ) -> Found:
        """Clients' answers to evaluation jobs, of which the first are under way when this returns."""
        context, task, submit = (
            replace(self.server.context(), testing=True),
            self.server.task,
            self.dispatcher.submit,
        )
        messages = (
            (index, self.server.message(task.clients[index], context) if received else None)
            for index in clients
        )
        jobs = (
            submit("evaluate", index, context, message, tests=tests, details=details)
            for index, message in messages
        )
        answers = self.dispatcher.exchange(jobs)
        return ((job.client, {} if answer is None else answer.scores) for job, answer in answers)
