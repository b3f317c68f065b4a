"""Analyse results by client and by class: fairness, differences between methods, confusion, calibration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.analysis.significance import same_clients
from potluck.core.errors import PotluckError
from potluck.runs.run import ClientResult, Record, Run


@dataclass(frozen=True)
class Calibration:
    """Calibration in bins of equal width: `edges` (one more than bins), numbers of predictions and of correct ones.

    `confidence` and `accuracy` are means per bin; nan where a bin is empty.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    correct: NDArray[np.int64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @property
    def error(self) -> float:
        """Return the expected calibration error of all predictions together (not the mean of the clients' errors)."""
        gaps = np.abs(np.nan_to_num(self.accuracy - self.confidence))
        return float((gaps * self.counts).sum() / self.counts.sum())


def confusion_matrix(run: Run, client: int | None = None) -> NDArray[np.int64]:
    """Count final test predictions by true class (row) and predicted class (column), of one client or all."""
    entries = [entry for row in _final_rows(run, client) for entry in row["confusion"]]
    classes = 1 + max(max(true, predicted) for true, predicted, _ in entries)
    if run.class_counts is not None:
        classes = max(classes, run.class_counts.shape[1])
    matrix = np.zeros((classes, classes), dtype=np.int64)
    for true, predicted, count in entries:
        matrix[true, predicted] += count
    return matrix


def class_labels(run: Run, count: int) -> list[str]:
    """Return the names of `count` classes; a class without a recorded name is its number."""
    return [*run.class_names[:count], *map(str, range(len(run.class_names), count))]


def client_label(run: Run, client: int) -> str:
    """Return the recorded name of a client."""
    return next((each.name for each in run.client_results if each.index == client), f"client {client}")


def class_accuracy(run: Run, client: int | None = None) -> NDArray[np.float64]:
    """Return the accuracy of each class's test samples; nan for a class without samples."""
    matrix = confusion_matrix(run, client)
    samples = matrix.sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.diagonal(matrix) / samples)


def calibration(run: Run, client: int | None = None) -> Calibration:
    """Return confidence and accuracy of the final tests' predictions, in bins."""
    bins = np.sum([row["calibration"] for row in _final_rows(run, client)], axis=0)
    counts, correct, sums = bins.T
    with np.errstate(invalid="ignore"):
        mean, share = sums / counts, correct / counts
    edges = np.linspace(0.0, 1.0, len(bins) + 1)
    return Calibration(edges, counts.astype(np.int64), correct.astype(np.int64), mean, share)


def _final_rows(run: Run, client: int | None) -> list[Record]:
    rows = [row for row in run.clients if row.get("final") and row.get("confusion")]
    if client is not None:
        rows = [row for row in rows if row["client"] == client]
    if not rows:
        owner = "" if client is None else f" of client {client}"
        raise PotluckError(
            f"Run {run.name!r} has no confusion matrix{owner}: finished runs have them, except where nodes "
            "with their own data do not share their results."
        )
    return rows


@dataclass(frozen=True)
class ClientDifference:
    """Final accuracy of a client under the first method minus that under the second (a fraction)."""

    client: ClientResult
    seed: int
    difference: float


@dataclass(frozen=True)
class Difference:
    """Differences of all clients, sorted from the greatest loss to the greatest gain."""

    clients: tuple[ClientDifference, ...]

    @property
    def share_better(self) -> float:
        """Return the share of clients with a higher accuracy under the first method."""
        return sum(each.difference > 0 for each in self.clients) / len(self.clients)

    @property
    def share_worse(self) -> float:
        """Return the share of clients with a lower accuracy; ties are in neither share."""
        return sum(each.difference < 0 for each in self.clients) / len(self.clients)

    @property
    def mean(self) -> float:
        """Return the mean difference over clients."""
        return float(np.mean([each.difference for each in self.clients]))


@dataclass(frozen=True)
class GroupMean:
    """Accuracy of the clients of one architecture (or of a named set of architectures)."""

    name: str
    mean: float
    std: float
    clients: int


def client_differences(a: Sequence[Run], b: Sequence[Run]) -> Difference:
    """Subtract final accuracies under `b` from those under `a`, client by client, over their common seeds."""
    partner = {run.seed: run for run in b}
    pairs = [(run, partner[run.seed]) for run in a if run.seed in partner]
    if not pairs:
        raise PotluckError(
            f"Runs of seeds {[run.seed for run in a]} and {[run.seed for run in b]} have no seed in common: "
            f"run both methods with one seed."
        )
    differences: list[ClientDifference] = []
    for run, other in pairs:
        if not same_clients(run, other):
            raise PotluckError(
                f"Runs {run.name!r} and {other.name!r} have different clients: compare runs of one partition."
            )
        accuracies = other.client_accuracy
        differences += [
            ClientDifference(client, run.seed, round(client.accuracy - accuracies[client.index], 9))
            for client in run.client_results
            if client.index in accuracies
        ]
    if not differences:
        raise PotluckError(
            f"Run {pairs[0][0].name!r} has tested no client yet: wait for its first evaluation."
        )
    return Difference(tuple(sorted(differences, key=lambda each: each.difference)))


def architecture_means(
    runs: Sequence[Run], sets: Mapping[str, Sequence[str]] | None = None
) -> tuple[GroupMean, ...]:
    """Return the mean final accuracy of each architecture's clients, over all runs.

    `sets` maps names to architectures to combine, such as the two-layer and the three-layer networks.
    """
    names = {each: name for name, members in (sets or {}).items() for each in members}
    accuracies: dict[str, list[float]] = {name: [] for name in sets or ()}
    for run in runs:
        for client in run.client_results:
            if sets is None or client.architecture in names:
                name = names.get(client.architecture, client.architecture)
                accuracies.setdefault(name, []).append(client.accuracy)
    return tuple(
        GroupMean(name, float(np.mean(values)), float(np.std(values)), len(values))
        for name, values in (accuracies.items() if sets else sorted(accuracies.items()))
        if values
    )


@dataclass(frozen=True)
class Fairness:
    """Spread of the clients' accuracies; `std` divides by n, since they are the whole population."""

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
