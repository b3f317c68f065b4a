"""A bound on how much one member may weigh, whatever it claims to have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def capped(weights: Sequence[float], share: float, rest: float = 0.0) -> list[float]:
    """The weights with the largest lowered until none is more than `share` of their sum and `rest`.

    Those that are small enough stay as they are. Where there are too few for such a bound (two cannot both weigh less
    than half), all weigh as little as the least.
    """
    if share >= 1:
        return list(weights)
    order = sorted(range(len(weights)), key=lambda number: -weights[number])
    for large in range(len(weights) + 1):
        if large * share >= 1:
            break
        small = sum(weights[number] for number in order[large:]) + rest
        bound = share * small / (1 - large * share)  # so that bound = share · (large · bound + small)
        if small and (large == len(weights) or weights[order[large]] <= bound):
            return [min(weight, bound) for weight in weights]
    return [min(weights)] * len(weights) if weights else []


def capped_counts(
    sent: Sequence[tuple[Tensor, Tensor]], counts: Sequence[Tensor], share: float
) -> list[Tensor]:
    """The same class by class: for each sender's rows and labels, the counts of its rows."""
    found = [count.to(rows.dtype) for (rows, _), count in zip(sent, counts, strict=True)]
    for label in sorted({*torch.cat([labels for _, labels in sent]).tolist()}):
        places = [
            (one, place)
            for one, (_, labels) in enumerate(sent)
            for place in (labels == label).nonzero()[:, 0].tolist()
        ]
        bounded = capped([float(found[one][place]) for one, place in places], share)
        for (one, place), weight in zip(places, bounded, strict=True):
            found[one][place] = weight
    return found
