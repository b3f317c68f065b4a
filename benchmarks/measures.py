"""What macro F1, calibration and the like add to a client's job, beside counting right answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.local import Pair
from benchmarks.population import CLASSES
from benchmarks.rows import Row
from benchmarks.trials import Action, Spread, time_alternately
from potluck.core.random import generator
from potluck.wire.score import score_outputs

GOAL = 1.0
TIMES = 20

Batches = Sequence[tuple[Tensor, Tensor]]


def count_right(outputs: Batches) -> tuple[int, float]:
    """Accuracy and loss alone."""
    right = sum(int((scores.argmax(dim=1) == y).sum()) for scores, y in outputs)
    return right, sum(float(F.cross_entropy(scores, y, reduction="sum")) for scores, y in outputs)


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Processor time of all measures less that of the count, as a share of one epoch over three times the samples."""
    for name, samples in (("lenet", 150), ("cnn-5", 150), ("cnn-5", 600)):
        pair, rng = Pair(name, 10, 2 if quick else samples // 10), generator("measures")
        scores = torch.randn(samples // 3, CLASSES, generator=rng)
        batch = [(scores, torch.randint(CLASSES, (samples // 3,), generator=rng))]
        actions: dict[str, Action] = {
            "job": pair.ours,
            "all": partial(_often, score_outputs, batch),
            "count": partial(_often, count_right, batch),
        }
        seconds = time_alternately(actions, 2 if quick else 40, clock=time.process_time)
        parts = zip(seconds["all"], seconds["count"], seconds["job"], strict=True)
        added = Spread.of([100 * (more - less) / TIMES / job for more, less, job in parts])
        yield Row("measures of a test", f"{name}, {samples} samples", added, "%", GOAL)


def _often(score: Callable[[Batches], object], batches: Batches) -> None:
    for _ in range(TIMES):
        score(batches)
