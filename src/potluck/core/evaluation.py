"""How a comparison measures: one protocol for all its methods."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from potluck.core.job import Score, Test
from potluck.core.samples import Samples
from potluck.core.task import Task

Protocol = Literal["local", "received", "shared", "global"]


@dataclass(frozen=True)
class Evaluation:
    """The protocol that gives `accuracy`, and those recorded beside it.

    `local`: the round's participants right after training, on their own test data. `received`: all clients
    as if they had just got the server's message, on their own test data. `shared`: the same on one common
    test set. `global`: the server's own model on the common test set, where the method has one.
    """

    protocol: Protocol = "local"
    also: tuple[Protocol, ...] = ()
    every: int = 1
    clients: Literal["all", "one-per-architecture"] = "all"
    shared_test: Samples | None = None

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """All protocols to record, the chosen one first."""
        return (self.protocol, *(name for name in self.also if name != self.protocol))

    def due(self, round_number: int, rounds: int) -> bool:
        """Whether a round is evaluated; the last one always is."""
        return round_number % self.every == 0 or round_number == rounds

    def tests(self) -> tuple[Test, ...]:
        """The test sets that need jobs of their own; local scores come with the training answers."""
        names: dict[Protocol, Test] = {"received": "own", "shared": "shared"}
        return tuple(names[name] for name in self.protocols if name in names)

    def population(self, task: Task) -> list[int]:
        """Which clients the `received` and `shared` protocols ask."""
        if self.clients == "all":
            return [info.index for info in task.clients]
        first = {info.architecture: info.index for info in reversed(task.clients)}
        return sorted(first.values())


@dataclass(frozen=True)
class Summary:
    """Scores of several clients as one: unweighted mean, spread, mean loss, and the micro average."""

    accuracy: float | None = None
    std: float | None = None
    loss: float | None = None
    micro: float | None = None


def summarise(scores: Iterable[Score]) -> Summary:
    """Mean over clients; all None where nobody was tested."""
    values = list(scores)
    if not values:
        return Summary()
    accuracies = [score.accuracy for score in values]
    mean = sum(accuracies) / len(values)
    std = math.sqrt(sum((accuracy - mean) ** 2 for accuracy in accuracies) / len(values))
    micro = sum(score.correct for score in values) / sum(score.samples for score in values)
    return Summary(mean, std, sum(score.loss for score in values) / len(values), micro)


def score_outputs(outputs: Iterable[tuple[Tensor, Tensor]]) -> Score:
    """Count right answers and sum the cross-entropy over batches of (scores, labels)."""
    correct, samples, loss_sum = 0, 0, 0.0
    for scores, y in outputs:
        correct += int((scores.argmax(dim=1) == y).sum())
        samples += len(y)
        loss_sum += float(F.cross_entropy(scores, y, reduction="sum"))
    return Score(correct, samples, loss_sum)
