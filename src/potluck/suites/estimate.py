"""What the missing runs of a suite would cost: stored runs where there are some, else a short trial of each method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from potluck.core.errors import PotluckError
from potluck.suites.runner import Runner
from potluck.suites.suite import Task
from potluck.suites.work import Work, measure

TRIAL_ROUNDS = 2


@dataclass(frozen=True)
class Estimate:
    """Missing trials and runs of one method on one task, and processor seconds of one of them; nan: it cannot run."""

    task: str
    method: str
    trials: int
    runs: int
    seconds: float

    @property
    def core_hours(self) -> float:
        """Processor hours of all missing trials and runs."""
        return (self.trials + self.runs) * self.seconds / 3600


def estimate(runner: Runner, measure_work: Callable[[Work], float] | None = None) -> Iterator[Estimate]:
    """Yield an estimate for every method of every task that lacks something."""
    trial = measure_work or short_trial
    for task, method in runner.units():
        missing = runner.missing_runs(task, method)
        trials = sum(run.trial for run in missing)
        runs = len(runner.seeds_of(task)) if trials else len(missing)
        if trials or runs:
            stored = _stored_seconds(runner, task, method)
            seconds = trial(missing[0].work) if stored is None else stored
            yield Estimate(task.name, method, trials, runs, seconds)


def _stored_seconds(runner: Runner, task: Task, method: str) -> float | None:
    """Return the mean processor time of stored runs of a method on a task."""
    seconds = [
        row.core_seconds
        for row in runner.results.rows
        if (row.task, row.method) == (task.name, method) and row.core_seconds is not None
    ]
    return float(np.mean(seconds)) if seconds else None


def short_trial(work: Work) -> float:
    """Return the processor seconds of a whole run, from one of a few rounds; nan where it cannot be run."""
    rounds = work.experiment.schedule.rounds
    short = work.experiment.with_settings({"schedule.rounds": min(rounds, TRIAL_ROUNDS)})
    try:
        spent = measure(replace(work, experiment=short).text)["row"]["core_seconds"]
    except PotluckError:
        return math.nan
    return float(spent) * max(1.0, rounds / TRIAL_ROUNDS)
