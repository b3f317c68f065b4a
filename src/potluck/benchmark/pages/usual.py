"""Every method as it comes: its usual settings and networks, held to training alone with the same networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from potluck.benchmark.pages.words import made_from, with_spread, wrapped
from potluck.benchmark.statistics import REFERENCE
from potluck.benchmark.store import Results, Row
from potluck.benchmark.suite import Suite

MARGIN = 0.03
"""How far below training alone a method may end and still count as sensible as it comes."""

ALONE = {
    "fedin": "digits-depth",
    "inclusivefl": "digits-depth",
    "heterofl": "digits-width",
    "fedrolex": "digits-width",
}
"""The task whose standalone run has the same networks, for methods that need nested ones."""

WEAK = {
    "heterofl": "a client holds a slice of one model for all, down to a sixteenth of its width, where training alone "
    "gives the small networks weights of their own",
    "fedrolex": "a client's slice of the one model, down to a sixteenth of its width, is another one in every round",
}
"""Methods that are allowed to end lower, and why."""


@dataclass(frozen=True)
class Line:
    """One method: accuracies over seeds, its mean distance to training alone, and what a job costs."""

    method: str
    accuracies: tuple[float, ...]
    gain: float
    samples: float
    floats: float

    @property
    def sensible(self) -> bool:
        """Whether it is not far below training alone."""
        return self.gain >= -MARGIN


def lines(suite: Suite, results: Results) -> list[Line]:
    """A line per method with results, in the suite's order; seeds that training alone has not are left out."""
    found = []
    for method in suite.task("digits").methods:
        alone = {row.seed: row for row in _rows(results, ALONE.get(method, "digits"), REFERENCE)}
        mine = [row for row in _rows(results, "digits", method) if row.seed in alone]
        if mine:
            gain = np.mean([row.final_accuracy - alone[row.seed].final_accuracy for row in mine])
            samples = np.mean([row.samples_per_job for row in mine])
            floats = np.mean([row.floats_up + row.floats_down for row in mine])
            accuracies = tuple(row.final_accuracy for row in mine)
            found.append(Line(method, accuracies, float(gain), float(samples), float(floats)))
    return found


def _rows(results: Results, task: str, method: str) -> list[Row]:
    return [row for row in results.rows if (row.task, row.method) == (task, method)]


def page(suite: Suite, results: Results) -> str:
    """The table of all methods, and who is below training alone."""
    found, seeds = lines(suite, results), {row.seed for row in results.rows}
    reading = (
        f"Accuracy is the mean over the ten clients on their own test samples after the last of 20 rounds, in per "
        f"cent, with the standard deviation over {len(seeds)} seeds. *Against alone* is the difference to the "
        "same clients trained alone with the same networks, in points. *Samples* are what a client's job trains on, "
        "repetitions counted; *numbers* are what travels per client and round, both ways. Nothing was tuned: these "
        "are the defaults. With so many samples per client, training alone is hard to beat; `potluck benchmark cpu` "
        "has harder tasks and tuned methods."
    )
    parts = [
        "# Every method as it comes",
        wrapped(made_from(suite, results)),
        wrapped(reading),
        _table(found),
    ]
    parts.append(wrapped(_verdict(found)))
    return "\n\n".join(parts) + "\n"


def _table(found: list[Line]) -> str:
    head = ["| method | accuracy | against alone | samples | numbers |", "|---|---:|---:|---:|---:|"]
    return "\n".join(head + [_row(line) for line in found])


def _row(line: Line) -> str:
    gain = "" if line.method == REFERENCE else f"{100 * line.gain:+.1f}"
    return f"| {line.method} | {with_spread(line.accuracies)} | {gain} | {line.samples:,.0f} | {line.floats:,.0f} |"


def _verdict(found: list[Line]) -> str:
    low = [line.method for line in found if not line.sensible]
    if not low:
        return f"No method ends more than {100 * MARGIN:.0f} points below training alone."
    reasons = "; ".join(f"{name} ({WEAK.get(name, 'not explained')})" for name in low)
    return f"More than {100 * MARGIN:.0f} points below training alone: {reasons}."


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """The page has no figure."""
