"""Paired tests between two methods, which state when the data do not allow a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from potluck.core.errors import PotluckError
from potluck.runs.run import Run

# With five pairs of the same sign the two-sided signed-rank test gives p = 2/2**5 > 0.05.
MIN_PAIRS = 6


@dataclass(frozen=True)
class PairedTest:
    """Result of a two-sided paired test of `a` against `b`.

    `p` is None where no test is possible, and `note` then says why. `difference` is the mean of a − b.
    """

    test: str
    p: float | None
    pairs: int
    difference: float
    note: str = ""


def wilcoxon(a: ArrayLike, b: ArrayLike) -> PairedTest:
    """Apply Wilcoxon's signed-rank test over pairs, exact where that is feasible.

    Pairs without a difference have no sign and are left out, as Wilcoxon did; six others must remain.
    """
    name = "Wilcoxon signed-rank over clients"
    differences = _differences(a, b)
    mean = float(differences.mean()) if len(differences) else 0.0
    nonzero = differences[differences != 0]
    if len(differences) and not len(nonzero):
        return PairedTest(name, 1.0, len(differences), mean, "no pair differs")
    if len(nonzero) < MIN_PAIRS:
        note = f"only {len(nonzero)} of {len(differences)} pairs differ, {MIN_PAIRS} are needed"
        return PairedTest(name, None, len(differences), mean, note)
    from scipy import stats

    p = float(stats.wilcoxon(nonzero, zero_method="wilcox", alternative="two-sided", method="auto").pvalue)
    ties = len(differences) - len(nonzero)
    return PairedTest(
        name, p, len(differences), mean, f"{ties} pairs without a difference left out" if ties else ""
    )


def paired_t(a: ArrayLike, b: ArrayLike) -> PairedTest:
    """Apply Student's paired t-test to the means of several seeds; at least two pairs are needed."""
    name = "paired t over seeds"
    differences = _differences(a, b)
    count = len(differences)
    mean = float(differences.mean()) if count else 0.0
    if count < 2:
        return PairedTest(name, None, count, mean, f"{count} common seed, 2 are needed")
    if np.ptp(differences) == 0:
        if mean == 0:
            return PairedTest(name, 1.0, count, mean, "no seed differs")
        return PairedTest(name, None, count, mean, "the difference is the same for every seed")
    from scipy import stats

    p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return PairedTest(name, p, count, mean, f"only {count} seeds" if count < 5 else "")


def same_clients(a: Run, b: Run) -> bool:
    """Return whether the clients of two runs can be paired: equal numbers, with the same samples where recorded."""
    if a.class_counts is not None and b.class_counts is not None:
        return bool(np.array_equal(a.class_counts, b.class_counts))
    return a.client_accuracy.keys() == b.client_accuracy.keys()


def paired_over_clients(a: Run, b: Run) -> PairedTest:
    """Compare two runs client by client on their final accuracies."""
    if not same_clients(a, b):
        raise PotluckError(
            f"Runs {a.name!r} and {b.name!r} have different clients: compare runs of one partition and seed."
        )
    common = sorted(a.client_accuracy.keys() & b.client_accuracy.keys())
    return wilcoxon([a.client_accuracy[i] for i in common], [b.client_accuracy[i] for i in common])


def paired_over_seeds(a: Sequence[Run], b: Sequence[Run]) -> PairedTest:
    """Compare two methods seed by seed on their final accuracies, over the seeds both were run with."""
    first = {run.seed: run.final_accuracy for run in a}
    second = {run.seed: run.final_accuracy for run in b}
    common = sorted(first.keys() & second.keys())
    return paired_t([first[seed] for seed in common], [second[seed] for seed in common])


def paired_test(a: Sequence[Run], b: Sequence[Run]) -> PairedTest:
    """Test over seeds when two or more are common, else over the clients of the common seed."""
    partner = {run.seed: run for run in b}
    pairs = [(run, partner[run.seed]) for run in a if run.seed in partner]
    if not pairs:
        return PairedTest("none", None, 0, 0.0, "no common seed")
    if len(pairs) >= 2:
        return paired_over_seeds(a, b)
    first, second = pairs[0]
    if not same_clients(first, second):
        return PairedTest("none", None, 0, 0.0, "the runs have different clients")
    return paired_over_clients(first, second)


def holm(values: dict[str, float]) -> dict[str, float]:
    """Apply Holm's correction: the smallest of n values times n, the next times n - 1, never below an earlier value."""
    corrected: dict[str, float] = {}
    highest = 0.0
    for place, (name, p) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, (len(values) - place) * p))
        corrected[name] = highest
    return corrected


def _differences(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """Subtract, rounded so that ties (0.3 − 0.2 and 0.2 − 0.1) stay ties."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise PotluckError(
            f"A paired test needs equal numbers of values, not {first.size} and {second.size}."
        )
    return np.round(first - second, 9)
