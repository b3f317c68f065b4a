"""What the rows of a suite say: means, differences to the reference with corrected tests, ranks over tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potluck.analysis.significance import holm, wilcoxon
from potluck.suites.store import Results, Row

REFERENCE = "standalone"
LEVEL = 0.05


@dataclass(frozen=True)
class MethodSummary:
    """A method on a task. `gain` is its mean difference to the reference over the seeds that both have."""

    method: str
    rows: tuple[Row, ...]
    accuracy: float
    std: float
    gain: float | None
    p: float | None
    corrected: float | None
    worst: float
    newcomers: float | None
    floats: float
    seconds: float
    samples: float

    @property
    def verdict(self) -> str:
        """`better` or `worse` than the reference where the corrected test says so, else nothing."""
        if self.corrected is None or self.gain is None or self.corrected >= LEVEL:
            return ""
        return "better" if self.gain > 0 else "worse"


def summarise_task(results: Results, task: str) -> list[MethodSummary]:
    """Return all methods of a task, the reference first, the others by accuracy."""
    by_method: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.task == task:
            by_method.setdefault(row.method, []).append(row)
    reference = {row.seed: row for row in by_method.get(REFERENCE, [])}
    tests = {
        method: paired_p_value(results, rows, reference)
        for method, rows in by_method.items()
        if method != REFERENCE
    }
    corrected = holm({method: p for method, p in tests.items() if p is not None})
    summaries = [
        _line(method, rows, reference, tests.get(method), corrected.get(method))
        for method, rows in by_method.items()
    ]
    return sorted(summaries, key=lambda line: (line.method != REFERENCE, -line.accuracy, line.method))


def _line(
    method: str, rows: Sequence[Row], reference: dict[int, Row], p: float | None, corrected: float | None
) -> MethodSummary:
    accuracies = np.array([row.accuracy for row in rows])
    gains = [row.accuracy - reference[row.seed].accuracy for row in rows if row.seed in reference]
    newcomers = [
        row.newcomers - row.newcomers_alone
        for row in rows
        if row.newcomers is not None and row.newcomers_alone is not None
    ]
    return MethodSummary(
        method=method,
        rows=tuple(sorted(rows, key=lambda row: row.seed)),
        accuracy=float(accuracies.mean()),
        std=float(accuracies.std(ddof=1)) if len(accuracies) > 1 else math.nan,
        gain=float(np.mean(gains)) if gains and method != REFERENCE else None,
        p=p,
        corrected=corrected,
        worst=float(np.mean([row.worst_tenth for row in rows])),
        newcomers=float(np.mean(newcomers)) if newcomers else None,
        floats=float(np.mean([row.floats_up + row.floats_down for row in rows])),
        seconds=float(np.mean([row.seconds for row in rows])),
        samples=float(np.mean([row.samples_per_job for row in rows])),
    )


def paired_p_value(results: Results, rows: Sequence[Row], reference: dict[int, Row]) -> float | None:
    """Wilcoxon's signed-rank test over all clients of all common seeds, each paired with itself trained alone."""
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


def mean_ranks(results: Results, tasks: Sequence[str]) -> tuple[dict[str, float], float]:
    """Return each method's mean rank over the tasks that all these methods did, and Nemenyi's critical difference.

    Two methods whose mean ranks are nearer than that are not told apart by so few tasks.
    """
    scores = {task: {line.method: line.accuracy for line in summarise_task(results, task)} for task in tasks}
    scores = {task: by_method for task, by_method in scores.items() if by_method}
    common = sorted(set.intersection(*(set(by_method) for by_method in scores.values()))) if scores else []
    if len(common) < 2 or len(scores) < 2:
        return {}, math.nan
    from scipy import stats

    ranks = np.array(
        [stats.rankdata([-by_method[method] for method in common]) for by_method in scores.values()]
    )
    count, number = len(common), len(scores)
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, count, math.inf)) / math.sqrt(2)
    critical = quantile * math.sqrt(count * (count + 1) / (6 * number))
    return dict(zip(common, ranks.mean(axis=0).tolist(), strict=True)), critical


def pareto_front(summaries: Sequence[MethodSummary]) -> list[str]:
    """Methods that no other beats in both accuracy and traffic."""
    return [
        candidate.method
        for candidate in summaries
        if not any(
            other.accuracy >= candidate.accuracy
            and other.floats <= candidate.floats
            and (other.accuracy, other.floats) != (candidate.accuracy, candidate.floats)
            for other in summaries
        )
    ]
