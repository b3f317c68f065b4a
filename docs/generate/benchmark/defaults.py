"""Compare every method with default settings with standalone training of the same networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from generate.benchmark.formatting import (
    BELOW,
    count_seeds,
    format_mean_std,
    format_share,
    needs_public_data,
    provenance_sentence,
    wrap_text,
)
from potluck.suites.statistics import REFERENCE, share_ended_below
from potluck.suites.store import Results, Row
from potluck.suites.suite import Suite

MARGIN = 0.03
"""Accuracy below standalone training that default settings may cost."""

BASELINE_TASK = {
    "fedin": "digits-depth",
    "inclusivefl": "digits-depth",
    "heterofl": "digits-width",
    "fedrolex": "digits-width",
}
"""The task whose standalone runs have the same networks, for methods that need nested ones."""

LEFT_OUT = frozenset({"hetlora", "flexlora", "flora"})
"""Methods that are not measured: without adapters, which no default sets, they are FedAvg."""

KNOWN_WEAK = {
    "fedcgs": "it takes no gradient step, so that extractors keep their first weights; it is meant for pretrained ones",
    "heterofl": "a client holds a slice of one model for all, down to a sixteenth of its width, where training alone "
    "gives the small networks weights of their own",
    "fedrolex": "a client's slice of the one model, down to a sixteenth of its width, is another one in every round",
}
"""Methods that may end lower, and why."""


@dataclass(frozen=True)
class Line:
    """One method: accuracies over seeds, mean difference to standalone training, and the cost of a job."""

    method: str
    accuracies: tuple[float, ...]
    gain: float
    below: float | None
    samples: float
    floats: float

    @property
    def sensible(self) -> bool:
        """Whether it ends at most `MARGIN` below standalone training."""
        return self.gain >= -MARGIN


def lines(suite: Suite, results: Results) -> list[Line]:
    """Return a line per method in the suite's order; seeds without a standalone run are left out."""
    results_lines = []
    for method in suite.task("digits").methods:
        alone = {row.seed: row for row in _rows(results, BASELINE_TASK.get(method, "digits"), REFERENCE)}
        rows = [row for row in _rows(results, "digits", method) if row.seed in alone]
        if rows:
            gain = np.mean([row.final_accuracy - alone[row.seed].final_accuracy for row in rows])
            samples = np.mean([row.samples_per_job for row in rows])
            floats = np.mean([row.floats_up + row.floats_down for row in rows])
            accuracies = tuple(row.final_accuracy for row in rows)
            below = None
            if method != REFERENCE and not needs_public_data(method):
                below = share_ended_below(results, rows, list(alone.values()))
            results_lines.append(Line(method, accuracies, float(gain), below, float(samples), float(floats)))
    return results_lines


def _rows(results: Results, task: str, method: str) -> list[Row]:
    return [row for row in results.rows if (row.task, row.method) == (task, method)]


def page(suite: Suite, results: Results) -> str:
    """Return the page: which methods end below standalone training, the table of all, and where rows come from."""
    summaries, seeds = lines(suite, results), count_seeds(results.rows)
    reading = (
        f"Accuracy is the mean over the ten clients on their own test samples after the last of 20 rounds, in per "
        f"cent, with the standard deviation over {seeds}. *Against standalone* is the difference to the "
        f"same clients trained alone with the same networks, in points. {BELOW} It is empty for methods that set public "
        "samples apart, whose clients have other ones. *Samples* are what a client's job trains on, "
        "repetitions counted; *numbers* are what travels per client and round, both ways. Nothing was "
        "tuned. With so many samples per client, training alone is hard to beat; `potluck benchmark cpu` "
        "has harder tasks and tuned methods."
    )
    parts = [
        "# Every method with default settings",
        wrap_text(f"{_summary(summaries)} {_verdict(summaries)}"),
        wrap_text(reading),
        _table(summaries),
    ]
    missing = [
        f"`{name}`"
        for name in suite.task("digits").methods
        if name not in {line.method for line in summaries}
    ]
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)} (`potluck benchmark {suite.name} --resume`).")
    parts.append(f"## Provenance\n\n{wrap_text(provenance_sentence(suite, results))}")
    return "\n\n".join(parts) + "\n"


def _table(summaries: list[Line]) -> str:
    head = [
        "| method | accuracy | against standalone | below | samples | numbers |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    return "\n".join(head + [_row(line) for line in summaries])


def _row(line: Line) -> str:
    gain = "" if line.method == REFERENCE else f"{100 * line.gain:+.1f}"
    return f"| {line.method} | {format_mean_std(line.accuracies)} | {gain} | {format_share(line.below)} | {line.samples:,.0f} | {line.floats:,.0f} |"


def _summary(summaries: list[Line]) -> str:
    """How many methods end within a margin of standalone training, with nothing tuned."""
    methods = [line for line in summaries if line.method != REFERENCE]
    level = sum(abs(line.gain) <= MARGIN for line in methods)
    above = sum(line.gain > MARGIN for line in methods)
    margin = f"{100 * MARGIN:.0f} points"
    return (
        f"With nothing tuned, {level} of {len(methods)} methods end within {margin} of the same clients trained alone, "
        f"{above} more than {margin} above. Differences of a point or two are chance."
    )


def _verdict(summaries: list[Line]) -> str:
    low = [line.method for line in summaries if not line.sensible]
    if not low:
        return f"No method ends more than {100 * MARGIN:.0f} points below standalone training."
    reasons = "; ".join(f"{name} ({KNOWN_WEAK.get(name, 'not explained')})" for name in low)
    return f"More than {100 * MARGIN:.0f} points below standalone training: {reasons}."


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """Draw nothing: the page has no figure."""
