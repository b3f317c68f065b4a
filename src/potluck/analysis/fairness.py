"""How evenly accuracy is spread over the clients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from potluck.core.errors import PotluckError


@dataclass(frozen=True)
class Fairness:
    """The spread of the clients' accuracies; they are the whole population, so `std` divides by n."""

    mean: float
    std: float
    worst: float  # mean of the worst tenth
    best: float  # the best client
    gap: float  # best client minus worst client
    clients: int


def fairness(accuracies: Iterable[float], share: float = 0.1) -> Fairness:
    """Summarise client accuracies; `worst` is the mean of the lowest `share` of clients, at least one."""
    values = np.sort(np.asarray(list(accuracies), dtype=np.float64))
    if not 0 < share <= 1:
        raise PotluckError(
            f"share {share:g} is not between 0 and 1: write 0.1 for the worst 10 % of clients."
        )
    if not len(values):
        return Fairness(math.nan, math.nan, math.nan, math.nan, math.nan, 0)
    count = math.ceil(round(share * len(values), 9))
    return Fairness(
        mean=float(values.mean()),
        std=float(values.std()),
        worst=float(values[:count].mean()),
        best=float(values[-1]),
        gap=float(values[-1] - values[0]),
        clients=len(values),
    )
