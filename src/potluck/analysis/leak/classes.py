"""Which classes a client holds, and in what proportions, as its last answer tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from potluck.analysis.leak.seen import class_counts, class_vectors, head_change, public_logits
from potluck.runs.answers import Kept

Shares = NDArray[np.float64]


def told_shares(kept: Sequence[Kept], classes: int) -> tuple[Shares, str] | None:
    """A client's class proportions as its answers tell them, and by which way; None where they tell nothing."""
    for one in kept:  # counts may travel once only
        if (counts := class_counts(one.answer, classes)) is not None and int(counts.sum()):
            return _normal(counts.double()), "counts that it sent"
    last = kept[-1]
    if (vectors := class_vectors(last.answer)) is not None:
        held = torch.zeros(classes, dtype=torch.float64)
        held[vectors[1]] = 1.0
        return _normal(held), "labels of its class vectors, all alike"
    changes = [change for one in kept if (change := head_change(one, classes)) is not None]
    if changes:
        return _normal(torch.stack(changes).double().mean(dim=0).clamp(min=0)), "what grew in its head's bias"
    if (logits := public_logits(last.answer)) is not None:
        return _normal(logits.double().softmax(dim=1).mean(dim=0)), "its mean softmax on public samples"
    return None


def _normal(counts: Tensor) -> Shares:
    total = float(counts.sum())
    shares: Shares = (counts / total if total else torch.full_like(counts, 1 / len(counts))).numpy()
    return shares


def class_scores(told: Mapping[int, Shares], counts: NDArray[np.int64]) -> dict[str, tuple[float, float]]:
    """(score, chance) of two questions, both 1 where everything is told.

    Held: the share of (client, class) pairs of which it is told right whether the client holds the class; by chance one
    always says what is more frequent. Proportions: the overlap of told and true ones, Σ min; by chance one guesses that
    every client is like all together.
    """
    clients = sorted(told)
    true = counts[clients] / counts[clients].sum(axis=1, keepdims=True)
    found = np.stack([told[client] for client in clients])
    held, said = true > 0, found > 0.5 / found.shape[1]
    usual = np.broadcast_to(counts.sum(axis=0) / counts.sum(), true.shape)
    return {
        "held": (float((held == said).mean()), float(max(held.mean(), 1 - held.mean()))),
        "proportions": (
            float(np.minimum(true, found).sum(axis=1).mean()),
            float(np.minimum(true, usual).sum(axis=1).mean()),
        ),
    }
