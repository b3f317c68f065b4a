"""Evaluation of clients and of the server's model after a round and at the end."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from potluck.attacks import Attackers
from potluck.core.method import Predictor
from potluck.core.random import add_up
from potluck.core.samples import Samples, outputs
from potluck.core.task import Context
from potluck.loop.dispatch import Dispatcher
from potluck.loop.records import ClientScore, Scores
from potluck.loop.schedule import Evaluation, Protocol
from potluck.loop.server import Server
from potluck.wire.jobs import Test
from potluck.wire.score import Score, score_outputs, summarise


def attack_metrics(attackers: Attackers, scores: Scores, protocol: Protocol) -> dict[str, float]:
    """`honest_accuracy`, the mean over honest clients (or the server's model), and `attack_success`.

    Success is the share of test samples that are taken for the class that the attacker wants: with the trigger, or with
    flipped labels. An attack without such an aim succeeds wherever an honest client is wrong.
    """
    honest = summarise(entry.score for entry in _of(attackers, scores.test, protocol))
    if not attackers or honest.accuracy is None:
        return {}
    metrics = {"honest_accuracy": honest.accuracy}
    if not attackers.attack.is_targeted:
        return {**metrics, "attack_success": 1 - honest.accuracy}
    success = summarise(entry.score for entry in _of(attackers, scores.attacked, protocol)).accuracy
    return metrics if success is None else {**metrics, "attack_success": success}


def safeguard_metrics(scores: Scores, protocol: Protocol) -> dict[str, float]:
    """Return means over clients: accuracy of federated and standalone models, and the share of the federated ones."""
    pairs = [
        (entry.federated, entry.alone, entry.score.comparison)
        for entry in scores.test
        if entry.protocol == protocol
    ]
    present = [
        (federated.accuracy, alone.accuracy, comparison.weight)
        for federated, alone, comparison in pairs
        if federated is not None and alone is not None and comparison is not None
    ]
    names = ("federated_accuracy", "alone_accuracy", "federated_weight")
    return {
        name: add_up(values) / len(values)
        for name, values in zip(names, zip(*present, strict=True), strict=False)
    }


def _of(attackers: Attackers, scores: Sequence[ClientScore], protocol: Protocol) -> list[ClientScore]:
    return [
        entry
        for entry in scores
        if entry.protocol == protocol and (entry.client is None or entry.client.index not in attackers)
    ]


Found = Iterable[tuple[int, Mapping[Test, Score]]]
"""Clients with the score of each of their tests."""


@dataclass(frozen=True)
class Evaluator:
    """Tests clients, or the server's model."""

    server: Server
    dispatcher: Dispatcher
    evaluation: Evaluation
    shared_test: Samples | None = None
    absent: Collection[int] = ()
    attackers: Attackers | None = None

    def after_round(self, context: Context) -> Scores:
        """Return the scores of a round: the local ones that came with answers, then those of other protocols."""
        task, number = self.server.task, context.round
        local = self._scores(sorted(self.server.progress.scores.items()), number, "local")
        tests = self.evaluation.tests(task)
        results = self._ask(self._population, tests, received=True) if tests else ()
        own = self._global(context)  # while clients are being tested
        received = self._scores(results, number, "received")
        return Scores(
            [*local.test, *received.test, *own.test],
            [*local.validation, *received.validation],
            [*local.attacked, *received.attacked, *own.attacked],
            [*local.gradient, *received.gradient],
        )

    @functools.cached_property
    def _population(self) -> list[int]:
        """The clients tested after a round."""
        return self.evaluation.population(self.server.task, self.absent)

    def at_end(self) -> Scores:
        """Test every client that takes part once, by the chosen protocol."""
        local, task = self.evaluation.protocol == "local", self.server.task
        participants = [info.index for info in task.clients if info.index not in self.absent]
        tests = self.evaluation.last_tests(task)
        results = self._ask(participants, tests, received=not local, details=True)
        return self._scores(
            results, self.server.schedule.rounds, "local" if local else "received", final=True
        )

    def _global(self, context: Context) -> Scores:
        """Return the score of the server's model, where it is requested and exists."""
        if "global" not in self.evaluation.protocols or self.shared_test is None:
            return Scores()
        predictor, task = self.server.predictor(context), self.server.task
        if predictor is None:
            return Scores()
        targeted_samples = (
            None if self.attackers is None else self.attackers.targeted_samples(self.shared_test, task)
        )
        sets = {"test": self.shared_test, "attacked": targeted_samples}
        metrics = {
            name: [ClientScore(context.round, None, "global", self._score(predictor, samples))]
            for name, samples in sets.items()
            if samples is not None and len(samples)
        }
        return Scores(**metrics)

    def _score(self, predictor: Predictor, samples: Samples) -> Score:
        """Test the server's model; between batches idle workers get their next jobs."""

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in outputs(predictor, samples, self.server.task):
                self.dispatcher.refill()
                yield batch

        return score_outputs(batches())

    def _scores(self, results: Found, number: int, own: Protocol, *, final: bool = False) -> Scores:
        """Scores by what they are of; `own` is the protocol of tests on clients' own samples."""
        task, test = self.server.task, list[ClientScore]()
        by_kind: dict[Test, list[ClientScore]] = {"validation": [], "attacked": [], "gradient": []}
        chosen: Protocol = "shared" if self.evaluation.protocol == "global" else self.evaluation.protocol
        for index, scores in results:
            compared: Test = "own" if "own" in scores else "shared"
            for kind, score in scores.items():
                if kind in ("federated", "alone"):
                    continue
                parts = (scores.get("federated"), scores.get("alone")) if kind == compared else ()
                aimed: Protocol = "shared" if "shared" in scores else own
                protocols: dict[Test, Protocol] = {"own": own, "shared": "shared", "attacked": aimed}
                protocol = protocols.get(kind, chosen)
                entry = ClientScore(number, task.clients[index], protocol, score, final, *parts)
                by_kind.get(kind, test).append(entry)
        return Scores(test, **by_kind)

    def _ask(
        self, clients: Iterable[int], tests: tuple[Test, ...], *, received: bool, details: bool = False
    ) -> Found:
        """Submit evaluation jobs; the first are running when this returns."""
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
