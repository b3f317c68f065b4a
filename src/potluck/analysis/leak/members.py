"""Whether a sample was trained on, and whether a class vector points at one of the client's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.analysis.leak.seen import class_vectors, whole_model
from potluck.core.client import Client
from potluck.core.payload import Payload
from potluck.core.samples import Samples
from potluck.runs.answers import Kept

Signal = NDArray[np.float64]
SIZES = ((1, 1), (2, 5), (6, 10**9))
"""Class sizes that are looked at apart: one sample, a few, many."""


def size_of(samples: int) -> tuple[int, int]:
    """The range of class sizes that a class with so many samples belongs to."""
    return next(one for one in SIZES if one[0] <= samples <= one[1])


def size_words(size: tuple[int, int]) -> str:
    """A range of class sizes in words."""
    low, high = size
    return f"{low}" if low == high else f"{low} to {high}" if high < 10**9 else f"{low} or more"


def _all(me: Client, function: Callable[[Tensor], Tensor], samples: Samples) -> tuple[Tensor, Tensor]:
    found = list(me.outputs(function, samples))
    return torch.cat([outputs for outputs, _ in found]), torch.cat([labels for _, labels in found])


def membership_signals(me: Client, kept: Kept) -> tuple[Signal, Signal, str] | None:
    """How much each training sample and each test sample looks like one that was trained on, and by which way."""
    if not len(me.train) or not len(me.test):
        return None
    if (weights := whole_model(kept, dict(me.model.named_parameters()))) is not None:
        model = me.predictor(weights)
        signals = [
            -cross_entropy(*_all(me, model, samples), reduction="none") for samples in (me.train, me.test)
        ]
        return signals[0].double().numpy(), signals[1].double().numpy(), "loss under the weights that it sent"
    vectors = class_vectors(kept.answer)
    function = None if vectors is None else vector_function(me, vectors[0])
    if vectors is None or function is None:
        return None
    rows = {label: row for row, label in zip(vectors[0], vectors[1].tolist(), strict=True)}
    near = []
    for samples in (me.train, me.test):
        outputs, labels = _all(me, function, samples)
        held = torch.tensor([label in rows for label in labels.tolist()])
        if not bool(held.any()):
            return None
        own = torch.stack([rows[label] for label in labels[held].tolist()])
        near.append(-(outputs[held] - own).norm(dim=1).double().numpy())
    return near[0], near[1], "distance to the class vector, with the client's model"


def vector_function(me: Client, rows: Tensor) -> Callable[[Tensor], Tensor] | None:
    """What the vectors are means of, by their width: features or logits of the client's model."""
    me.model.eval()
    if rows.shape[1] == me.model.feature_dim and rows.shape[1] != me.task.num_classes:
        return me.model.features
    return me.model if rows.shape[1] == me.task.num_classes else None


def auc_and_rate(inside: Signal, outside: Signal) -> tuple[float, float]:
    """Area under the curve, and the true positive rate at no more than one false positive of a hundred."""
    from sklearn.metrics import roc_auc_score, roc_curve

    truth = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    signal = np.nan_to_num(np.concatenate([inside, outside]), nan=-1e300, neginf=-1e300, posinf=1e300)
    false, true, _ = roc_curve(truth, signal)
    return float(roc_auc_score(truth, signal)), float(true[false <= 0.01].max())


def rate_by_chance(outside: int) -> float:
    """What that rate comes to where signals tell nothing: of few samples outside, one hundredth is less than one.

    The threshold then is the highest of `outside` signals (or the second highest from 100 on, and so on), and the share
    of others above the k-th highest of n is k / (n + 1) in expectation.
    """
    return (outside // 100 + 1) / (outside + 1)


def identified(
    me: Client, answer: Payload, others: Sequence[Samples]
) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """By class size: whether the sample nearest to a class vector is the client's own, and the chance of that.

    Candidates are the client's samples of the class and those of all others, seen through the client's own model.
    """
    vectors = class_vectors(answer)
    function = None if vectors is None else vector_function(me, vectors[0])
    if vectors is None or function is None:
        return {}
    own, labels = _all(me, function, me.train)
    foreign = [_all(me, function, samples) for samples in others if len(samples)]
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row, label in zip(vectors[0], vectors[1].tolist(), strict=True):
        mine = (own[labels == label] - row).norm(dim=1)
        theirs = torch.cat([(outputs[y == label] - row).norm(dim=1) for outputs, y in foreign])
        if len(mine) and len(theirs):
            hit = float(mine.min() < theirs.min())
            found.setdefault(size_of(len(mine)), []).append((hit, len(mine) / (len(mine) + len(theirs))))
    return found
