"""Class by class, and confidence by confidence: what the final tests of a run were made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError
from potluck.runs.run import Record, Run


@dataclass(frozen=True)
class Calibration:
    """Bins of confidence, of equal width: `edges` (one more than bins), how many predictions, how many right.

    `confidence` is the mean confidence and `accuracy` the share right of each bin; nan where it is empty.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    right: NDArray[np.int64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @property
    def error(self) -> float:
        """The expected calibration error of all predictions together, which is not the mean of the clients' errors."""
        gaps = np.abs(np.nan_to_num(self.accuracy - self.confidence))
        return float((gaps * self.counts).sum() / self.counts.sum())


def confusion_matrix(run: Run, client: int | None = None) -> NDArray[np.int64]:
    """How often each class (row) was taken for each (column) in the final tests, of one client or of all together."""
    entries = [entry for row in _final_rows(run, client) for entry in row["confusion"]]
    classes = 1 + max(max(true, guess) for true, guess, _ in entries)
    if run.class_counts is not None:
        classes = max(classes, run.class_counts.shape[1])
    matrix = np.zeros((classes, classes), dtype=np.int64)
    for true, guess, count in entries:
        matrix[true, guess] += count
    return matrix


def class_accuracy(run: Run, client: int | None = None) -> NDArray[np.float64]:
    """The share right of each class's test samples; nan for a class without any."""
    matrix = confusion_matrix(run, client)
    samples = matrix.sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.diagonal(matrix) / samples)


def calibration(run: Run, client: int | None = None) -> Calibration:
    """How sure the predictions of the final tests were, and how right."""
    bins = np.sum([row["calibration"] for row in _final_rows(run, client)], axis=0)
    counts, right, sums = bins.T
    with np.errstate(invalid="ignore"):
        mean, share = sums / counts, right / counts
    edges = np.linspace(0.0, 1.0, len(bins) + 1)
    return Calibration(edges, counts.astype(np.int64), right.astype(np.int64), mean, share)


def _final_rows(run: Run, client: int | None) -> list[Record]:
    rows = [row for row in run.clients if row.get("final") and row.get("confusion")]
    if client is not None:
        rows = [row for row in rows if row["client"] == client]
    if not rows:
        who = "" if client is None else f" of client {client}"
        raise PotluckError(
            f"Run {run.name!r} has no confusion matrix{who}: a run has them once it has ended, and nodes with data "
            "of their own keep theirs to themselves."
        )
    return rows
