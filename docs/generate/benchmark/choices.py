"""Choose methods by constraint: the best mean over the tasks among those that satisfy it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from potluck.core.needs import Need
from potluck.methods import method_class
from potluck.suites.statistics import REFERENCE, MethodSummary, summarise_task
from potluck.suites.store import Results
from potluck.suites.suite import Task

LITTLE = 20_000
"""Numbers per client and round, both ways, that a slow link carries: 80 kB."""


@dataclass(frozen=True)
class Candidate:
    """A method over the tasks that it did."""

    method: str
    found: tuple[MethodSummary, ...]

    @property
    def gain(self) -> float:
        """Mean gain over standalone training."""
        return float(np.mean([line.gain for line in self.found if line.gain is not None]))

    @property
    def newcomers(self) -> float:
        """Mean gain of clients that join at the end; not a number where no task has any."""
        known = [line.newcomers for line in self.found if line.newcomers is not None]
        return float(np.mean(known)) if known else math.nan

    @property
    def floats(self) -> float:
        """The most that it sends on any task."""
        return max(line.floats for line in self.found)

    @property
    def public(self) -> bool:
        """Whether it needs samples that all parties may see."""
        return Need.PUBLIC_DATA in method_class(self.method).needs

    def told(self, value: float) -> str:
        """Its name and what it brings, with how often the tests agree."""
        ahead = sum(line.verdict == "better" for line in self.found)
        behind = sum(line.verdict == "worse" for line in self.found)
        many = len(self.found)
        return (
            f"**{self.method}** ({100 * value:+.1f} points in the mean of {many} tasks; significantly ahead on "
            f"{ahead}, behind on {behind}; at most {self.floats:,.0f} numbers)"
        )


def choices(results: Results, tasks: Sequence[Task]) -> str:
    """A line per constraint: the best method that keeps to it, and the runner-up."""
    known = candidates(results, tasks)
    if not known:
        return ""
    rules: list[tuple[str, Callable[[Candidate], bool], Callable[[Candidate], float]]] = [
        ("Public samples are at hand", lambda one: one.public, lambda one: one.gain),
        ("No public samples", lambda one: not one.public, lambda one: one.gain),
        (
            f"No public samples, and at most {LITTLE:,} numbers per client and round",
            lambda one: not one.public and one.floats <= LITTLE,
            lambda one: one.gain,
        ),
        (
            "No public samples, and clients that join later are what matters",
            lambda one: not one.public,
            lambda one: one.newcomers,
        ),
    ]
    said = [f"* {words}: {_best(known, keeps, worth)}" for words, keeps, worth in rules]
    return "\n".join(["## What to choose when", "", *said])


def candidates(results: Results, tasks: Sequence[Task]) -> list[Candidate]:
    """The methods that did the tasks, or all but one of five; the reference is what they are measured by."""
    found: dict[str, list[MethodSummary]] = {}
    for task in tasks:
        for line in summarise_task(results, task.name):
            if line.method != REFERENCE and line.gain is not None:
                found.setdefault(line.method, []).append(line)
    return [
        Candidate(method, tuple(own))
        for method, own in found.items()
        if len(own) >= len(tasks) - len(tasks) // 5
    ]


def _best(
    known: Sequence[Candidate], keeps: Callable[[Candidate], bool], worth: Callable[[Candidate], float]
) -> str:
    fit = [one for one in known if keeps(one) and not math.isnan(worth(one))]
    order = sorted(fit, key=worth, reverse=True)
    if not order:
        return "no method of this kind was measured on so many tasks."
    best, *others = order
    if worth(best) <= 0:
        return f"train alone; the best of the others is {best.told(worth(best))}."
    after = f"; then {others[0].told(worth(others[0]))}" if others and worth(others[0]) > 0 else ""
    return f"{best.told(worth(best))}{after}."
