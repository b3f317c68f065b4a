"""What the rows of a suite say: differences to standalone training with intervals over seeds, verdicts, and power."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from potluck.analysis.significance import holm, wilcoxon
from potluck.suites.baselines import LINES
from potluck.suites.store import Results, Row

REFERENCE = "standalone"
SAME, HEAD, PUBLIC, POOLED = "standalone-same", "standalone-head", "standalone-public", "pooled"
"""Trained baselines: standalone for as many rounds as the methods, with a head alone on a frozen network, with public
samples too, on all clients' samples."""
BASELINES = (REFERENCE, SAME, HEAD, PUBLIC, POOLED, *LINES)
FLOOR = ("majority", "ridge", "logistic")
"""Baselines that standalone training must reach, or nothing that is compared with it is worth a comparison."""
LEVEL, POWER = 0.05, 0.8
MARGIN = 0.01
"""Differences within a point count as level."""
AHEAD, BEHIND, EQUAL, UNDECIDED = "ahead", "behind", "level", "undecided"


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences over seeds with its 95 % interval (Student's t), and their standard deviation."""

    mean: float
    low: float
    high: float
    std: float
    seeds: int

    @property
    def p(self) -> float | None:
        """The probability of so large a mean, of either sign, if the true one were 0 (paired t-test)."""
        return None if self.seeds < 2 else 2 * _tail(self, abs(self.mean))

    @property
    def p_level(self) -> float | None:
        """The probability of a mean so near 0 if the true one were a point or more away (two one-sided tests)."""
        return None if self.seeds < 2 else _tail(self, MARGIN - abs(self.mean))


def _tail(difference: Difference, distance: float) -> float:
    """Return the one-sided probability of a mean so far from a value, in units of its standard error."""
    from scipy.stats import t

    error = difference.std / math.sqrt(difference.seeds)
    if error < 1e-12:
        return 0.0 if distance > 0 else 0.5 if distance == 0 else 1.0
    return float(t.sf(distance / error, difference.seeds - 1))


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """Return the difference of two methods over the seeds that both have; no interval (nan) from one seed."""
    values = np.array([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())])
    if not len(values):
        return None
    mean = float(values.mean())
    if len(values) < 2:
        return Difference(mean, math.nan, math.nan, math.nan, 1)
    from scipy.stats import t

    std = float(values.std(ddof=1))
    reach = float(t.ppf(1 - LEVEL / 2, len(values) - 1)) * std / math.sqrt(len(values))
    return Difference(mean, mean - reach, mean + reach, std, len(values))


def with_least_spread(difference: Difference, std: float) -> Difference:
    """Return a difference with a standard deviation over seeds of at least `std`, and the interval that follows.

    Equal differences of a few seeds come from accuracies that move in steps of a test sample; they are no certainty.
    """
    if difference.seeds < 2 or difference.std >= std:
        return difference
    from scipy.stats import t

    reach = float(t.ppf(1 - LEVEL / 2, difference.seeds - 1)) * std / math.sqrt(difference.seeds)
    return Difference(
        difference.mean, difference.mean - reach, difference.mean + reach, std, difference.seeds
    )


def accuracy_step(runs: Sequence[Sequence[float]], most: int = 300) -> float:
    """Return by how much one test sample of an average client moves the mean accuracy of all clients.

    `runs` are the accuracies of the same clients in several runs on the same test samples; a client has at least as
    many of these as the largest denominator of its accuracies. Clients that are always equal share their test samples.
    """
    if not runs or not runs[0]:
        return 0.0
    sizes = [
        max(Fraction(value).limit_denominator(most).denominator for value in values)
        for values in zip(*runs, strict=True)
    ]
    shared = all(len(set(values)) == 1 for values in runs)
    return float(np.mean([1 / size for size in sizes])) / (1 if shared else len(sizes))


@dataclass(frozen=True)
class MethodSummary:
    """A method or baseline on a task: means over seeds, all at the round that is best on validation samples.

    `gain` and `small_gain` (of the tenth of clients with the fewest training samples) are differences to the reference,
    `joining` is what newcomers gain over training alone, `below` the share of clients below themselves trained alone.
    Costs are of one client: numbers both ways per round, samples and GFLOPs of all rounds.
    """

    method: str
    rows: tuple[Row, ...]
    accuracy: float
    std: float
    gain: Difference | None
    corrected: float | None
    corrected_level: float | None
    worst: float
    smallest: float
    small_gain: Difference | None
    below: float | None
    joining: Difference | None
    floats: float
    samples: float
    gflops: float
    seconds: float

    @property
    def is_baseline(self) -> bool:
        """Whether it is no federated method."""
        return self.method in BASELINES

    @property
    def verdict(self) -> str:
        """What the tests say, corrected for the methods of the task; empty for baselines and without a test."""
        if self.gain is None or self.corrected is None or self.corrected_level is None:
            return ""
        if self.corrected < LEVEL:
            return AHEAD if self.gain.mean > 0 else BEHIND
        return EQUAL if self.corrected_level < LEVEL else UNDECIDED


def summarise_task(results: Results, task: str) -> list[MethodSummary]:
    """Return all methods of a task: baselines first, in their order, then methods by accuracy.

    Corrections by Holm run over the federated methods of the task, for each of the two tests.
    """
    rows = rows_by_method(results, task)
    gains = {name: _difference(own_rows, rows.get(REFERENCE, ())) for name, own_rows in rows.items()}
    tested = {name: gain for name, gain in gains.items() if name not in BASELINES and gain is not None}
    corrected = holm({name: gain.p for name, gain in tested.items() if gain.p is not None})
    level = holm({name: gain.p_level for name, gain in tested.items() if gain.p_level is not None})
    summaries = [
        _summarise(results, name, own_rows, rows.get(REFERENCE, ()), (corrected.get(name), level.get(name)))
        for name, own_rows in rows.items()
    ]
    return sorted(summaries, key=_by_kind_and_accuracy)


def _by_kind_and_accuracy(line: MethodSummary) -> tuple[int, float, str]:
    place = BASELINES.index(line.method) if line.is_baseline else len(BASELINES)
    return place, -line.accuracy, line.method


def rows_by_method(results: Results, task: str) -> dict[str, list[Row]]:
    """Return the rows of a task by method, each by seed."""
    by_method: dict[str, list[Row]] = {}
    for row in sorted(results.rows, key=lambda row: row.seed):
        if row.task == task:
            by_method.setdefault(row.method, []).append(row)
    return by_method


def by_seed(rows: Iterable[Row], value: Callable[[Row], float | None]) -> dict[int, float]:
    """Return a value of each row by its seed, where it is known."""
    pairs = ((row.seed, value(row)) for row in rows)
    return {seed: number for seed, number in pairs if number is not None}


def _difference(
    first: Sequence[Row],
    second: Sequence[Row],
    value: Callable[[Row], float | None] = lambda row: row.accuracy,
) -> Difference | None:
    return paired_difference(by_seed(first, value), by_seed(second, value))


def _summarise(
    results: Results,
    method: str,
    rows: Sequence[Row],
    reference: Sequence[Row],
    corrected: tuple[float | None, float | None],
) -> MethodSummary:
    accuracies = [row.accuracy for row in rows]
    other = () if method == REFERENCE else reference
    newcomers, alone = (
        by_seed(rows, lambda row: row.newcomers),
        by_seed(rows, lambda row: row.newcomers_alone),
    )
    return MethodSummary(
        method=method,
        rows=tuple(rows),
        accuracy=float(np.mean(accuracies)),
        std=float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else math.nan,
        gain=_difference(rows, other),
        corrected=corrected[0],
        corrected_level=corrected[1],
        worst=_mean(row.worst_best for row in rows),
        smallest=_mean(row.smallest_tenth for row in rows),
        small_gain=_difference(rows, other, lambda row: row.smallest_tenth),
        below=share_below(results, rows, other),
        joining=None if method in BASELINES else paired_difference(newcomers, alone),
        floats=_mean(row.floats_up + row.floats_down for row in rows),
        samples=_mean(None if row.rounds is None else row.samples_per_job * row.rounds for row in rows),
        gflops=_mean(row.gflops for row in rows),
        seconds=_mean(row.core_seconds for row in rows),
    )


def _mean(values: Iterable[float | None]) -> float:
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else math.nan


def share_below(results: Results, rows: Sequence[Row], reference: Sequence[Row]) -> float | None:
    """Return the share of clients, over all common seeds, that end below themselves trained alone."""
    standalone = {row.seed: _best_clients(results, row) for row in reference}
    pairs = [
        (federated, alone)
        for row in rows
        for federated, alone in zip(_best_clients(results, row), standalone.get(row.seed, []), strict=False)
    ]
    return float(np.mean([federated < alone for federated, alone in pairs])) if pairs else None


def share_ended_below(results: Results, rows: Sequence[Row], reference: Sequence[Row]) -> float | None:
    """Return the share of clients, over all common seeds, whose last accuracy is below their own trained alone.

    None where no seed has the accuracies of the same number of clients for both.
    """
    alone = {row.seed: _last_clients(results, row) for row in reference}
    pairs = [
        (federated, other)
        for row in rows
        if len(_last_clients(results, row)) == len(alone.get(row.seed, ()))
        for federated, other in zip(_last_clients(results, row), alone.get(row.seed, ()), strict=True)
    ]
    return float(np.mean([federated < other for federated, other in pairs])) if pairs else None


def _last_clients(results: Results, row: Row) -> list[float]:
    clients: list[float] = results.details.get(row.experiment, {}).get("clients", [])
    return clients


def _best_clients(results: Results, row: Row) -> list[float]:
    clients: list[float] = results.details.get(row.experiment, {}).get("best_clients", [])
    return clients


def compare_methods(results: Results, task: str, first: str, second: str) -> Difference | None:
    """Return the difference of two methods on a task, seed by seed."""
    rows = rows_by_method(results, task)
    return _difference(rows.get(first, ()), rows.get(second, ()))


def failed_floor(results: Results, task: str) -> dict[str, Difference]:
    """Return the baselines that standalone training does not reach: it is a point or more below, or surely below."""
    differences = {name: compare_methods(results, task, REFERENCE, name) for name in FLOOR}
    return {
        name: difference
        for name, difference in differences.items()
        if difference is not None and (difference.mean <= -MARGIN or difference.high < 0)
    }


def longest_training(summaries: Sequence[MethodSummary]) -> tuple[float, float]:
    """Return the samples that a client trains on in all rounds: with the reference, and with the costliest method."""
    by_method = {line.method: line.samples for line in summaries if not math.isnan(line.samples)}
    methods = [samples for name, samples in by_method.items() if name not in BASELINES]
    return by_method.get(REFERENCE, math.nan), max(methods, default=math.nan)


@dataclass(frozen=True)
class Power:
    """What a task can detect: smallest true gain found in `POWER` of all repetitions, with and without correction.

    `std` is the median over methods of the standard deviation of differences over seeds, `needed` the seeds that would
    detect one point.
    """

    seeds: int
    methods: int
    std: float
    gain: float
    corrected_gain: float
    needed: int


def task_power(summaries: Sequence[MethodSummary]) -> Power | None:
    """Return what a task can detect, given how its methods' differences vary over seeds."""
    gains = [
        line.gain
        for line in summaries
        if not line.is_baseline and line.gain is not None and line.gain.seeds > 1
    ]
    if not gains:
        return None
    seeds, std = min(gain.seeds for gain in gains), float(np.median([gain.std for gain in gains]))
    level = LEVEL / len(gains)
    return Power(
        seeds,
        len(gains),
        std,
        detectable_gain(std, seeds, LEVEL),
        detectable_gain(std, seeds, level),
        seeds_needed(std, MARGIN),
    )


def detectable_gain(std: float, seeds: int, level: float) -> float:
    """Return the true mean difference that a paired t-test finds with probability `POWER`."""
    if std == 0:
        return 0.0
    from scipy.optimize import brentq

    shift = brentq(lambda shift: t_test_power(shift, seeds, level) - POWER, 0.0, 1e3)
    return float(shift) * std / math.sqrt(seeds)


def t_test_power(shift: float, seeds: int, level: float) -> float:
    """Return the power of a two-sided paired t-test where the mean is `shift` standard errors from 0."""
    from scipy.stats import nct, t

    limit = t.ppf(1 - level / 2, seeds - 1)
    below = nct.cdf(-limit, seeds - 1, shift)
    return float(nct.sf(limit, seeds - 1, shift)) + (0.0 if math.isnan(below) else float(below))


def seeds_needed(std: float, gain: float, most: int = 1000) -> int:
    """Return the fewest seeds with which a gain is detected without correction; `most` stands for more."""
    return next((seeds for seeds in range(2, most) if detectable_gain(std, seeds, LEVEL) <= gain), most)


def paired_p_value(results: Results, rows: Sequence[Row], reference: Mapping[int, Row]) -> float | None:
    """Apply Wilcoxon's signed-rank test over all clients of all common seeds, each paired with itself elsewhere."""
    first_values: list[float] = []
    second_values: list[float] = []
    for row in rows:
        other = reference.get(row.seed)
        if other is None:
            continue
        first, second = (
            results.details.get(entry.experiment, {}).get("clients", []) for entry in (row, other)
        )
        if first and len(first) == len(second):
            first_values += first
            second_values += second
    return wilcoxon(first_values, second_values).p if first_values else None
