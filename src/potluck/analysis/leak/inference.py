"""Infer a client's classes and the membership of samples from its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.analysis.leak.observations import (
    class_counts,
    class_vectors,
    head_change,
    public_logits,
    whole_model,
)
from potluck.core.client import Client
from potluck.core.payload import Payload
from potluck.core.samples import Samples
from potluck.runs.answers import KeptAnswer

Shares = NDArray[np.float64]


def infer_class_shares(kept: Sequence[KeptAnswer], classes: int) -> tuple[Shares, str] | None:
    """Infer a client's class proportions from its answers, with the source; None where they reveal nothing."""
    for exchange in kept:  # counts may be sent only once
        if (counts := class_counts(exchange.answer, classes)) is not None and int(counts.sum()):
            return _normal(counts.double()), "counts that it sent"
    last = kept[-1]
    if (vectors := class_vectors(last.answer)) is not None:
        presence = torch.zeros(classes, dtype=torch.float64)
        presence[vectors[1]] = 1.0
        return _normal(presence), "labels of its class vectors, all alike"
    changes = [change for exchange in kept if (change := head_change(exchange, classes)) is not None]
    if changes:
        return _normal(torch.stack(changes).double().mean(dim=0).clamp(min=0)), "what grew in its head's bias"
    if (logits := public_logits(last.answer)) is not None:
        return _normal(logits.double().softmax(dim=1).mean(dim=0)), "its mean softmax on public samples"
    return None


def _normal(counts: Tensor) -> Shares:
    total = float(counts.sum())
    shares: Shares = (counts / total if total else torch.full_like(counts, 1 / len(counts))).numpy()
    return shares


def score_class_shares(
    inferred: Mapping[int, Shares], counts: NDArray[np.int64]
) -> dict[str, tuple[float, float]]:
    """Return (score, chance) of two questions; a perfect inference scores 1.

    Held: the share of (client, class) pairs for which it is inferred correctly whether the client holds the class; the
    chance level is that of the more frequent answer. Proportions: the overlap of inferred and true proportions, Σ min;
    the chance level is that of the proportions of all clients together.
    """
    clients = sorted(inferred)
    true = counts[clients] / counts[clients].sum(axis=1, keepdims=True)
    shares = np.stack([inferred[client] for client in clients])
    present, claimed = true > 0, shares > 0.5 / shares.shape[1]
    overall = np.broadcast_to(counts.sum(axis=0) / counts.sum(), true.shape)
    return {
        "held": (float((present == claimed).mean()), float(max(present.mean(), 1 - present.mean()))),
        "proportions": (
            float(np.minimum(true, shares).sum(axis=1).mean()),
            float(np.minimum(true, overall).sum(axis=1).mean()),
        ),
    }


Signal = NDArray[np.float64]
SIZES = ((1, 1), (2, 5), (6, 10**9))
"""Ranges of class sizes that are scored separately: one sample, a few, many."""


def size_range(samples: int) -> tuple[int, int]:
    """Return the range of class sizes that contains `samples`."""
    return next(size for size in SIZES if size[0] <= samples <= size[1])


def size_text(size: tuple[int, int]) -> str:
    """Write a range of class sizes."""
    low, high = size
    return f"{low}" if low == high else f"{low} to {high}" if high < 10**9 else f"{low} or more"


def _outputs(me: Client, function: Callable[[Tensor], Tensor], samples: Samples) -> tuple[Tensor, Tensor]:
    batches = list(me.outputs(function, samples))
    return torch.cat([outputs for outputs, _ in batches]), torch.cat([labels for _, labels in batches])


def membership_signals(me: Client, kept: KeptAnswer) -> tuple[Signal, Signal, str] | None:
    """Return membership signals of training and test samples (higher: more likely a member), with the source."""
    if not len(me.train) or not len(me.test):
        return None
    if (weights := whole_model(kept, dict(me.model.named_parameters()))) is not None:
        model = me.predictor(weights)
        signals = [
            -cross_entropy(*_outputs(me, model, samples), reduction="none") for samples in (me.train, me.test)
        ]
        return signals[0].double().numpy(), signals[1].double().numpy(), "loss under the weights that it sent"
    vectors = class_vectors(kept.answer)
    function = None if vectors is None else vector_function(me, vectors[0])
    if vectors is None or function is None:
        return None
    rows = {label: row for row, label in zip(vectors[0], vectors[1].tolist(), strict=True)}
    distances = []
    for samples in (me.train, me.test):
        outputs, labels = _outputs(me, function, samples)
        has_vector = torch.tensor([label in rows for label in labels.tolist()])
        if not bool(has_vector.any()):
            return None
        own = torch.stack([rows[label] for label in labels[has_vector].tolist()])
        distances.append(-(outputs[has_vector] - own).norm(dim=1).double().numpy())
    return distances[0], distances[1], "distance to the class vector, with the client's model"


def vector_function(me: Client, rows: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return the function whose mean the vectors are, by their width: features or logits of the client's model."""
    me.model.eval()
    if rows.shape[1] == me.model.feature_dim and rows.shape[1] != me.task.num_classes:
        return me.model.features
    return me.model if rows.shape[1] == me.task.num_classes else None


def auc_and_tpr(inside: Signal, outside: Signal) -> tuple[float, float]:
    """Return the area under the ROC curve, and the true positive rate at a false positive rate of at most 1 %."""
    from sklearn.metrics import roc_auc_score, roc_curve

    truth = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    signal = np.nan_to_num(np.concatenate([inside, outside]), nan=-1e300, neginf=-1e300, posinf=1e300)
    false, true, _ = roc_curve(truth, signal)
    return float(roc_auc_score(truth, signal)), float(true[false <= 0.01].max())


def chance_tpr(outside: int) -> float:
    """Return the expected true positive rate of uninformative signals with `outside` non-members.

    The threshold is the highest of `outside` signals (the second highest from 100 on, and so on), and the expected
    share of other signals above the k-th highest of n is k / (n + 1).
    """
    return (outside // 100 + 1) / (outside + 1)


def nearest_is_own(
    me: Client, answer: Payload, others: Sequence[Samples]
) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """Return by class size whether the sample nearest to a class vector is the client's own, and the chance of that.

    Candidates are the client's samples of the class and those of all other clients, through the client's own model.
    """
    vectors = class_vectors(answer)
    function = None if vectors is None else vector_function(me, vectors[0])
    if vectors is None or function is None:
        return {}
    own, labels = _outputs(me, function, me.train)
    foreign = [_outputs(me, function, samples) for samples in others if len(samples)]
    hits: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row, label in zip(vectors[0], vectors[1].tolist(), strict=True):
        inside = (own[labels == label] - row).norm(dim=1)
        outside = torch.cat([(outputs[y == label] - row).norm(dim=1) for outputs, y in foreign])
        if len(inside) and len(outside):
            hit, chance = float(inside.min() < outside.min()), len(inside) / (len(inside) + len(outside))
            hits.setdefault(size_range(len(inside)), []).append((hit, chance))
    return hits
