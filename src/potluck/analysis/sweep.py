"""A setting varied over runs: accuracy of every method at every value, with the spread over seeds.

One table serves them all: classes per client, Dirichlet's parameter, participation, number of clients,
learning rates, local epochs, groups of models, the switches of an ablation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from potluck.analysis.groups import settings_of
from potluck.core.errors import unknown
from potluck.runs.run import Run

METRICS = ("best", "final", "last")


@dataclass(frozen=True)
class SweepPoint:
    """A method at one value of the setting."""

    value: object
    mean: float
    std: float  # over seeds; 0 for a single one
    seeds: int


@dataclass(frozen=True)
class Sweep:
    """One curve per method over the values of a setting."""

    field: str
    metric: str
    methods: dict[str, tuple[SweepPoint, ...]]

    @property
    def values(self) -> list[object]:
        """All values that were tried, in order."""
        return sorted({point.value for points in self.methods.values() for point in points}, key=_order)


def sweep(runs: Iterable[Run], field: str, metric: str = "best") -> Sweep:
    """Accuracy against the setting `field` of `experiment.toml` (dotted, as in `partition.alpha`)."""
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    found: dict[str, dict[object, list[float]]] = {}
    for run in runs:
        settings = settings_of(run)
        if field not in settings:
            raise unknown(f"setting of run {run.name!r}", field, settings or ["(it has none)"])
        accuracy = float(getattr(run, f"{metric}_accuracy"))
        found.setdefault(run.method, {}).setdefault(_hashable(settings[field]), []).append(accuracy)
    methods = {
        method: tuple(_point(value, found[method][value]) for value in sorted(found[method], key=_order))
        for method in found
    }
    return Sweep(field, metric, methods)


def _point(value: object, accuracies: list[float]) -> SweepPoint:
    std = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else 0.0
    return SweepPoint(value, float(np.mean(accuracies)), std, len(accuracies))


def _hashable(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _order(value: object) -> tuple[str, float]:
    """Numbers in their order before texts in theirs; texts with a number at the end go by that number."""
    if isinstance(value, int | float):
        return ("", float(value))
    number = re.search(r"\d+(\.\d+)?$", str(value))
    return (str(value)[: number.start()], float(number.group())) if number else (str(value), 0.0)
