"""How a comparison measures: one protocol for all its methods."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from potluck.core.settings import Settings, setting
from potluck.core.task import Task
from potluck.loop.jobs import Test
from potluck.loop.score import Score

Protocol = Literal["local", "received", "shared", "global"]
Protocols = tuple[Protocol, ...]
Select = Literal["auto", "validation", "test", "last"]


@dataclass(frozen=True)
class Evaluation(Settings):
    """How a comparison measures: one protocol for all its methods.

    `local`: the round's participants right after training, on their own test data; in asynchronous runs all clients
    that have trained so far, each as it stands. `received`: all clients
    as if they had just got the server's message, on their own test data. `shared`: the same on one common
    test set. `global`: the server's own model on the common test set, where the method has one.

    Clients' validation samples are looked at in the very jobs of the chosen protocol (for `shared` and `global`: as
    if clients had just got the server's message), and say which round was the best one.
    """

    protocol: Protocol = setting("local", "which test gives `accuracy`")
    also: Protocols = setting((), "further protocols, recorded beside it")
    every: int = setting(1, "rounds between evaluations; the last round always has one", ge=1)
    clients: Literal["all", "one-per-architecture"] = setting(
        "all", "whom `received` and `shared` test after a round"
    )
    select: Select = setting(
        "auto", "what the best round is best on; auto: validation samples where clients have some, else test"
    )
    newcomers: float = setting(
        0.0, "share of the clients kept out of training; at the end they join, or train alone", ge=0, lt=1
    )
    newcomer_epochs: int | None = setting(None, "how long they train; unset: training.epochs", ge=1)

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """All protocols to record, the chosen one first."""
        return (self.protocol, *(name for name in self.also if name != self.protocol))

    def due(self, round_number: int, rounds: int) -> bool:
        """Whether a round is evaluated; the last one always is."""
        return round_number % self.every == 0 or round_number == rounds

    def tests_in_training(self, task: Task) -> tuple[Test, ...]:
        """What training jobs end with: the local scores, which need no job of their own."""
        own: tuple[Test, ...] = ("own",) if "local" in self.protocols else ()
        return (*own, *self._validation(task)) if self.protocol == "local" else own

    def tests(self, task: Task) -> tuple[Test, ...]:
        """The test sets that need jobs of their own after a round."""
        names: dict[Protocol, Test] = {"received": "own", "shared": "shared"}
        tests = tuple(names[name] for name in self.protocols if name in names)
        return tests if self.protocol == "local" else (*tests, *self._validation(task))

    def last_tests(self, task: Task) -> tuple[Test, ...]:
        """What every client is tested on at the end."""
        test: Test = "shared" if self.protocol in ("shared", "global") else "own"
        return (test, *self._validation(task))

    def _validation(self, task: Task) -> tuple[Test, ...]:
        return ("validation",) if any(info.validation for info in task.clients) else ()

    def population(self, task: Task, absent: Collection[int] = ()) -> list[int]:
        """Which clients the `received` and `shared` protocols ask; never absent ones."""
        present = [info for info in task.clients if info.index not in absent]
        if self.clients == "all":
            return [info.index for info in present]
        first = {info.architecture: info.index for info in reversed(present)}
        return sorted(first.values())


@dataclass(frozen=True)
class Summary:
    """Scores of several clients as one: unweighted means, the spread of accuracies, and their micro average."""

    accuracy: float | None = None
    std: float | None = None
    loss: float | None = None
    micro: float | None = None
    macro_f1: float | None = None
    calibration_error: float | None = None


def summarise(scores: Iterable[Score]) -> Summary:
    """Mean over clients; all None where nobody was tested."""
    values = list(scores)
    if not values:
        return Summary()
    accuracies = [score.accuracy for score in values]
    mean = sum(accuracies) / len(values)
    std = math.sqrt(sum((accuracy - mean) ** 2 for accuracy in accuracies) / len(values))
    micro = sum(score.correct for score in values) / sum(score.samples for score in values)
    return Summary(
        mean,
        std,
        sum(score.loss for score in values) / len(values),
        micro,
        sum(score.macro_f1 for score in values) / len(values),
        sum(score.calibration_error for score in values) / len(values),
    )
