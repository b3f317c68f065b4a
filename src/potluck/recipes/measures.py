"""Measure a cell from its run, and check that the method's mechanism acted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from potluck.analysis.cost import FLOAT_BYTES, cost_to_target
from potluck.recipes.times import read_time
from potluck.runs.run import Run

MeasureName = Literal[
    "best",
    "last",
    "rounds",
    "speed-up",
    "kib-to-target",
    "mib-to-target",
    "gflops-to-target",
    "kib-per-client-round",
    "mib-up-per-round",
    "mib-down-per-round",
    "floats-up",
    "millions-up",
    "saved",
    "memory-mib",
    "mflops-per-sample",
    "client-time",
    "server-time",
]
COUNTED: tuple[MeasureName, ...] = (
    *("kib-per-client-round", "mib-up-per-round", "mib-down-per-round", "floats-up", "millions-up", "saved"),
    *("memory-mib", "mflops-per-sample"),
)
"""What follows from shapes alone, so that nothing has to be learned for it."""

TIMED: tuple[MeasureName, ...] = ("client-time", "server-time")
"""What is measured on this machine, and differs from run to run."""

RELATIVE: tuple[MeasureName, ...] = ("speed-up", "saved", *TIMED)
"""What compares a row with the first one."""

COUNTS = "counts.json"
"""The file of a run folder that holds what was counted beside the messages."""

TO_TARGET: tuple[MeasureName, ...] = (
    "rounds",
    "speed-up",
    "kib-to-target",
    "mib-to-target",
    "gflops-to-target",
)

ABOUT: dict[MeasureName, str] = {
    "best": "accuracy of the best round, %",
    "last": "accuracy of the last evaluated round, %",
    "rounds": "rounds to the target accuracy",
    "speed-up": "rounds to the target of the first row ÷ those of this one",
    "kib-to-target": "traffic of all clients to the target, KiB, as the paper counts",
    "mib-to-target": "traffic of all clients to the target, MiB, as the paper counts",
    "gflops-to-target": "operations of all clients' training to the target, in thousands of millions",
    "kib-per-client-round": "traffic per client and round, both ways, KiB, as the paper counts",
    "mib-up-per-round": "numbers that all clients of a round send, MiB at four bytes each",
    "mib-down-per-round": "numbers that all clients of a round receive, MiB at four bytes each",
    "floats-up": "numbers that a client sends per round, as the paper counts",
    "millions-up": "the same in millions",
    "saved": "numbers that a client sends less than one of the first row, as the paper counts, %",
    "memory-mib": "MiB of what all clients of a round send, times the copies that a client keeps where a row says so",
    "client-time": "processor time of a client's later training job ÷ that of the first row's, on this machine",
    "server-time": "processor time of the server's functions in a round ÷ that of the first row's, on this machine",
    "mflops-per-sample": "millions of operations of a client's round for each of its training samples",
}


def measure(
    run: Run, name: MeasureName, target: float | None = None, field: str = "accuracy", copies: int = 1
) -> float:
    """Return one run's value; nan where it was not measured or the target never reached. Accuracies are in %.

    What compares two runs is here what belongs to this one: rounds, numbers sent, or a time.
    """
    simple: dict[MeasureName, Callable[[], float]] = {
        "best": lambda: 100 * _best(run, field),
        "last": lambda: 100 * float(run.curve(field).y[-1]),
        "kib-per-client-round": lambda: _paper_bytes(run) / 2**10,
        "mib-up-per-round": lambda: _usual(run, "floats_up") * FLOAT_BYTES / 2**20,
        "mib-down-per-round": lambda: _usual(run, "floats_down") * FLOAT_BYTES / 2**20,
        "floats-up": lambda: _paper_up(run),
        "millions-up": lambda: _paper_up(run) / 1e6,
        "saved": lambda: _paper_up(run),
        "memory-mib": lambda: copies * _jobs_per_round(run) * _paper_up(run) * FLOAT_BYTES / 2**20,
        "mflops-per-sample": lambda: flops_per_sample(run) / 1e6,
        "client-time": lambda: read_time(run.path, "client"),
        "server-time": lambda: read_time(run.path, "server"),
    }
    if name in simple:
        return simple[name]() if name in (*COUNTED, *TIMED) or run.has(field) else math.nan
    assert target is not None
    cost = cost_to_target(run, target)
    if name in ("rounds", "speed-up") or not cost.reached:
        return cost.rounds
    if name == "gflops-to-target":
        return cost.flops / 1e9
    jobs = float(run.jobs[np.flatnonzero(run.axis("rounds") == cost.rounds)[0]])
    return jobs * _paper_bytes(run) / (2**10 if name == "kib-to-target" else 2**20)


def flops_per_sample(run: Run) -> float:
    """Return the operations of a client's round for each of its training samples; nan where they were not counted."""
    file = run.path / COUNTS
    return float(json.loads(file.read_text("utf-8"))["flops_per_sample"]) if file.exists() else math.nan


def relative(name: MeasureName, first: float, own: float) -> float:
    """Return a value that compares a row with the first one, from what was measured of both."""
    if name == "saved":
        return 100 * (1 - own / first)
    if name in TIMED:
        return own / first if first else math.nan
    return first / own


def _best(run: Run, field: str) -> float:
    """Return the best round's value of a field: the field's own best where rounds are picked on test samples."""
    curve = run.curve(field)
    if run.selected_by == "test":
        return float(curve.y.max())
    return float(next(iter(curve.y[curve.round == run.best_round]), math.nan))


def _paper_up(run: Run) -> float:
    """Return numbers that a client sends in a round: the paper's own count, or ours where it has none."""
    counted = run.summary.get("paper_accounting")
    return float(counted["up"]) if counted else run.per_client_round("floats_up")


def _paper_bytes(run: Run) -> float:
    """Both ways per client and round at four bytes a number: the paper's own count, or ours where it agrees."""
    counted = run.summary.get("paper_accounting")
    if counted:
        return FLOAT_BYTES * (float(counted["up"]) + float(counted["down"]))
    return FLOAT_BYTES * (run.per_client_round("floats_up") + run.per_client_round("floats_down"))


def _jobs_per_round(run: Run) -> float:
    return float(np.median([len(record["participants"]) for record in run.rounds]))


def _usual(run: Run, key: str) -> float:
    """Return the median over rounds: in the first one many methods have nothing to send down yet."""
    return float(np.median([float(record[key]) for record in run.rounds]))


assert set(ABOUT) == set(get_args(MeasureName))


@dataclass(frozen=True)
class Mechanism:
    """A note of a method, its value where the mechanism does nothing, and the least distance from it that counts."""

    note: str
    idle: float
    least: float
    about: str


MECHANISMS: dict[str, Mechanism] = {
    "pfedafm": Mechanism("alpha", 1.0, 0.01, "mean mixing weight α; 1 is the private model alone"),
    "fedgh": Mechanism("movement", 0.0, 1e-6, "relative change of the header in a server step"),
    "fedl2g-l": Mechanism("movement", 0.0, 1e-6, "relative change of the guiding vectors by the quiz"),
    "fedl2g-f": Mechanism("movement", 0.0, 1e-6, "relative change of the guiding vectors by the quiz"),
    "fedin": Mechanism("pairs", 0.0, 0.5, "pairs of features that the server holds"),
    "fedapen": Mechanism("lambda", 0.5, 0.01, "mean share λ of the private model; 0.5 before it is learned"),
}


@dataclass(frozen=True)
class Activity:
    """The value of a mechanism's note that lies farthest from doing nothing."""

    mechanism: Mechanism
    value: float

    @property
    def acts(self) -> bool:
        """Whether the mechanism changed anything worth the name."""
        return abs(self.value - self.mechanism.idle) >= self.mechanism.least

    def __str__(self) -> str:
        return f"{self.mechanism.note} {self.value:.3g}"


def activity(method: str, run: Run) -> Activity | None:
    """Return what the mechanism did in a run; nothing for a method that records none."""
    mechanism = MECHANISMS.get(method)
    if mechanism is None:
        return None
    return _farthest(mechanism, ((record.get("notes") or {}).get(mechanism.note) for record in run.rounds))


def stored_activity(method: str, notes: Mapping[str, Sequence[Sequence[float]]]) -> Activity | None:
    """Return the same from stored curves of notes: points of round and value."""
    mechanism = MECHANISMS.get(method)
    if mechanism is None:
        return None
    return _farthest(mechanism, (value for _, value in notes.get(mechanism.note, ())))


def _farthest(mechanism: Mechanism, values: Iterable[Any]) -> Activity | None:
    finite = [float(value) for value in values if value is not None and math.isfinite(float(value))]
    if not finite:
        return None
    return Activity(mechanism, max(finite, key=lambda value: abs(value - mechanism.idle)))
