"""Scores of predictions: accuracy, loss, macro F1, calibration error, confusion."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from potluck.core.random import add_up

CONFIDENCE_BINS = 15
"""Bins of confidence, of equal width: (0, 1/15], (1/15, 2/15], … , (14/15, 1]."""


@dataclass(frozen=True)
class ScoreDetails:
    """What a test's measures are made of; it says which classes a client has, so nodes keep it to themselves.

    `confusion` counts (true class, predicted class) for the pairs that occurred, ascending. `bins` has for each
    bin of confidence how many predictions fell into it, how many of them were right, and their summed confidence.
    """

    confusion: tuple[tuple[int, int, int], ...]
    bins: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True)
class Comparison:
    """A tested predictor beside the client's standalone model on the same samples, with `safeguard`.

    `weight` is the federated model's share in the tested predictor, from 0 (standalone) to 1. `gained` counts samples
    that only the tested predictor got right, `lost` those that only the standalone model got right; `federated_gained`
    and `federated_lost` are the same counts of the federated model.
    """

    weight: float
    gained: int
    lost: int
    federated_gained: int
    federated_lost: int


@dataclass(frozen=True)
class Score:
    """The outcome of one test: how many right, of how many, and the summed cross-entropy.

    `macro_f1` is the unweighted mean over classes that occur, as labels or as predictions, of 2·TP ÷ (2·TP + FP + FN).
    `calibration_error` is the expected calibration error: over the bins of the predicted class's softmax probability,
    the mean of |share right − mean confidence| weighted by the number of predictions.
    """

    correct: int
    samples: int
    loss_sum: float
    macro_f1: float = 0.0
    calibration_error: float = 0.0
    details: ScoreDetails | None = None
    comparison: Comparison | None = None

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.samples

    @property
    def loss(self) -> float:
        """Mean cross-entropy: the negative log-likelihood of a label."""
        return self.loss_sum / self.samples


def score_outputs(outputs: Iterable[tuple[Tensor, Tensor]], *, details: bool = False) -> Score:
    """Return the score of batches of (class scores, labels), at least one; `details` keeps what it is made of."""
    labels, predicted, confidence = list[Tensor](), list[Tensor](), list[Tensor]()
    loss_sum, classes = 0.0, 0
    for scores, y in outputs:
        logs = F.log_softmax(scores, dim=1)
        loss_sum += float(F.nll_loss(logs, y, reduction="sum"))
        labels.append(y)
        predicted.append(scores.argmax(dim=1))
        confidence.append(logs.amax(dim=1).exp())
        classes = scores.shape[1]
    true, guess, sure = _numbers(labels), _numbers(predicted), _numbers(confidence)
    right, sure = true == guess, np.fmax(sure, 0.0)  # not-a-number is no confidence at all
    place = np.maximum(np.ceil(sure * CONFIDENCE_BINS).astype(np.int64), 1) - 1
    error = float(np.abs(np.bincount(place, right - sure)).sum()) / len(true)
    f1 = _macro_f1(true, guess, right, classes)
    detail = ScoreDetails(_confusion(true, guess, classes), _bins(place, right, sure)) if details else None
    return Score(int(np.count_nonzero(right)), len(true), loss_sum, f1, error, detail)


def _numbers(parts: list[Tensor]) -> NDArray[Any]:
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    numbers: NDArray[Any] = joined.cpu().numpy()
    return numbers


def _macro_f1(true: NDArray[Any], guess: NDArray[Any], right: NDArray[np.bool_], classes: int) -> float:
    occurs = np.bincount(true, minlength=classes) + np.bincount(guess, minlength=classes)  # 2·TP + FP + FN
    hits = np.bincount(true[right], minlength=classes)
    return 2 * float((hits / np.maximum(occurs, 1)).sum()) / int(np.count_nonzero(occurs))


def _bins(place: NDArray[Any], right: NDArray[np.bool_], sure: NDArray[Any]) -> tuple[Any, ...]:
    counts, hits, sums = (
        np.bincount(place, weights, CONFIDENCE_BINS).tolist() for weights in (None, right, sure)
    )
    return tuple(zip(counts, map(int, hits), sums, strict=True))


def _confusion(true: NDArray[Any], guess: NDArray[Any], classes: int) -> tuple[tuple[int, int, int], ...]:
    pairs, counts = np.unique(true * classes + guess, return_counts=True)
    columns = (pairs // classes, pairs % classes, counts)
    return tuple(zip(*(column.tolist() for column in columns), strict=True))


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
    """Return means over clients; all None where no client was tested."""
    values = list(scores)
    if not values:
        return Summary()
    accuracies = [score.accuracy for score in values]
    mean = add_up(accuracies) / len(values)
    std = math.sqrt(add_up((accuracy - mean) ** 2 for accuracy in accuracies) / len(values))
    micro = sum(score.correct for score in values) / sum(score.samples for score in values)
    return Summary(
        mean,
        std,
        add_up(score.loss for score in values) / len(values),
        micro,
        add_up(score.macro_f1 for score in values) / len(values),
        add_up(score.calibration_error for score in values) / len(values),
    )
