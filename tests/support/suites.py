"""Stored rows of suites, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from potluck.suites.store import Results, Row


def make_row(task: str, method: str, seed: int, accuracy: float, **changes: Any) -> Row:
    """Return a row whose accuracies are all the same."""
    numbers = dict.fromkeys(
        ("accuracy", "final_accuracy", "worst_tenth", "worst_best", "smallest_tenth"), accuracy
    )
    words = dict.fromkeys(("settings", "versions", "machine", "date", "command"), "")
    values: dict[str, Any] = {
        "task": task, "method": method, "seed": seed, **numbers, **words, "commit": "abc", "macro_f1": None,
        "calibration_error": None, "newcomers": 0.6, "newcomers_alone": 0.5, "floats_up": 10.0, "floats_down": 0.0,
        "samples_per_job": 1.0, "seconds": 1.0, "experiment": f"{task}-{method}-{seed}",
    }  # fmt: skip
    return Row(**{**values, **changes})


def add_rows(
    results: Results,
    task: str,
    method: str,
    accuracies: Sequence[float],
    clients: Sequence[Sequence[float]] = (),
) -> None:
    """Add a row per accuracy, with the seeds 0, 1, …, and what each client of each seed reached."""
    for seed, accuracy in enumerate(accuracies):
        row = make_row(task, method, seed, accuracy)
        results.rows.append(row)
        own = list(clients[seed]) if clients else [accuracy] * 4
        results.details[row.experiment] = {"clients": own, "best_clients": own}
