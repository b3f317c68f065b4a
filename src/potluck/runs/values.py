"""What a run gives when it is asked: curves, results of clients, failed jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Values of one metric where it was measured: `y[i]` belongs to `round[i]`, and is drawn at `x[i]`."""

    round: Numbers
    x: Numbers
    y: Numbers

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class ClientResult:
    """How one client ended: who it is and how well its model does on its own test samples."""

    index: int
    name: str
    architecture: str
    accuracy: float
    train_samples: int | None
    test_samples: int | None


@dataclass(frozen=True)
class FailedJob:
    """A client that did not give a usable answer: when, who, and why in a word and in a sentence."""

    round: int
    client: int
    kind: str
    reason: str


def number_of(value: object) -> float:
    """A measured number, or nan for anything that is not one (null, missing, a text)."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
