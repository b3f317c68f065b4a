"""What a table's cell can be measured as, from a finished run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from potluck.analysis.accounting import FLOAT_BYTES
from potluck.analysis.targets import cost_to_target
from potluck.runs.run import Run

MeasureName = Literal[
    "best",
    "last",
    "rounds",
    "speed-up",
    "kib-to-target",
    "mib-to-target",
    "kib-per-client-round",
    "mib-up-per-round",
    "mib-down-per-round",
    "floats-up",
]
TO_TARGET: tuple[MeasureName, ...] = ("rounds", "speed-up", "kib-to-target", "mib-to-target")

ABOUT: dict[MeasureName, str] = {
    "best": "accuracy of the best round, %",
    "last": "accuracy of the last evaluated round, %",
    "rounds": "rounds to the target accuracy",
    "speed-up": "rounds to the target of the first row ÷ those of this one",
    "kib-to-target": "traffic of all clients to the target, KiB, as the paper counts",
    "mib-to-target": "traffic of all clients to the target, MiB, as the paper counts",
    "kib-per-client-round": "traffic per client and round, both ways, KiB, as the paper counts",
    "mib-up-per-round": "numbers that all clients of a round send, MiB at four bytes each",
    "mib-down-per-round": "numbers that all clients of a round receive, MiB at four bytes each",
    "floats-up": "numbers that a client sends per round",
}


def measure(run: Run, name: MeasureName, target: float | None = None, field: str = "accuracy") -> float:
    """One run's value; nan where it was not measured or the target never reached. Accuracies are in %.

    A speed-up is made of the rounds of two runs, so here it is the rounds of this one.
    """
    simple: dict[MeasureName, Callable[[], float]] = {
        "best": lambda: 100 * _best(run, field),
        "last": lambda: 100 * float(run.curve(field).y[-1]),
        "kib-per-client-round": lambda: _paper_bytes(run) / 2**10,
        "mib-up-per-round": lambda: _usual(run, "floats_up") * FLOAT_BYTES / 2**20,
        "mib-down-per-round": lambda: _usual(run, "floats_down") * FLOAT_BYTES / 2**20,
        "floats-up": lambda: run.per_client_round("floats_up"),
    }
    if name in simple:
        return simple[name]() if run.has(field) else math.nan
    assert target is not None
    cost = cost_to_target(run, target)
    if name in ("rounds", "speed-up") or not cost.reached:
        return cost.rounds
    jobs = float(run.jobs[np.flatnonzero(run.axis("rounds") == cost.rounds)[0]])
    return jobs * _paper_bytes(run) / (2**10 if name == "kib-to-target" else 2**20)


def _best(run: Run, field: str) -> float:
    """The best round's value of a field: the field's own best where rounds are picked on test samples."""
    curve = run.curve(field)
    if run.selected_by == "test":
        return float(curve.y.max())
    return float(next(iter(curve.y[curve.round == run.best_round]), math.nan))


def _paper_bytes(run: Run) -> float:
    """Both ways per client and round at four bytes a number: the paper's own count, or ours where it agrees."""
    counted = run.summary.get("paper_accounting")
    if counted:
        return FLOAT_BYTES * (float(counted["up"]) + float(counted["down"]))
    return FLOAT_BYTES * (run.per_client_round("floats_up") + run.per_client_round("floats_down"))


def _usual(run: Run, key: str) -> float:
    """The median over rounds: in the first one many methods have nothing to send down yet."""
    return float(np.median([float(record[key]) for record in run.rounds]))


assert set(ABOUT) == set(get_args(MeasureName))
