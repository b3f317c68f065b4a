"""What it costs to reach a target accuracy, in every currency a run is paid in, and speed-ups."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from potluck.core.errors import PotluckError, unknown
from potluck.runs.run import Run

COSTS = ("rounds", "bytes", "floats", "seconds", "virtual_seconds", "flops")


@dataclass(frozen=True)
class TargetCost:
    """What a run had spent at the first evaluation that reached the target; nan where never or unknown.

    Traffic is of all clients and both directions; `flops` is of all clients' local training.
    """

    target: float
    rounds: float = math.nan
    bytes: float = math.nan
    floats: float = math.nan
    seconds: float = math.nan
    virtual_seconds: float = math.nan
    flops: float = math.nan

    @property
    def reached(self) -> bool:
        """Whether the run reached the target at all."""
        return math.isfinite(self.rounds)

    def in_(self, cost: str) -> float:
        """The cost named `cost` (one of `COSTS`)."""
        if cost not in COSTS:
            raise unknown("cost", cost, COSTS)
        return float(getattr(self, cost))


def check_target(target: float) -> float:
    """Return `target` if it is a fraction; accuracies are fractions everywhere."""
    if not 0 < target <= 1:
        raise PotluckError(f"target {target:g} is not an accuracy between 0 and 1: write 0.8 for 80 %.")
    return target


def cost_to_target(run: Run, target: float) -> TargetCost:
    """What `run` had spent when its accuracy first reached `target`, from the raw (unsmoothed) curve."""
    check_target(target)
    accuracy = np.asarray([_or_nan(record.get("accuracy")) for record in run.rounds])
    reached = np.flatnonzero(accuracy >= target)
    if not len(reached):
        return TargetCost(target)
    first = int(reached[0])
    flops = run.summary.get("flops_per_client_round")
    return TargetCost(
        target,
        **{
            axis: float(run.axis(axis)[first])
            for axis in ("rounds", "bytes", "floats", "seconds", "virtual_seconds")
        },
        flops=math.nan if flops is None else float(flops) * float(run.jobs[first]),
    )


def speed_up(cost: TargetCost, reference: TargetCost, by: str = "rounds") -> float:
    """How many times cheaper `cost` is than `reference`; nan unless both reached the target."""
    spent = cost.in_(by)
    return reference.in_(by) / spent if spent else math.nan


def _or_nan(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
