"""What the missing runs of a suite would cost: stored runs where there are some, else short runs of each method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from potluck.core.errors import PotluckError
from potluck.suites.baselines import LINES
from potluck.suites.runner import Runner
from potluck.suites.suite import Task
from potluck.suites.work import Work, measure

SHORT_ROUNDS = 2
"""Rounds of the shorter of two runs from which the time of a round is taken."""
LONGER = 1.0
"""Seconds that the longer run takes more, at least; a tenth of a second of warming up then matters little."""


@dataclass(frozen=True)
class Estimate:
    """Missing trials and runs of one method on one task, and processor seconds of one of them.

    `wider` are trials that may come on top: of learning rates beyond the best one at an end of the grid. With a
    `problem` the method cannot run, and `seconds` is nan.
    """

    task: str
    method: str
    trials: int
    runs: int
    seconds: float
    wider: int = 0
    problem: str = ""

    @property
    def core_hours(self) -> float:
        """Processor hours of all missing trials and runs."""
        return (self.trials + self.runs) * self.seconds / 3600

    @property
    def wider_hours(self) -> float:
        """Processor hours of all trials that may come on top."""
        return self.wider * self.seconds / 3600


def estimate(runner: Runner, measure_work: Callable[[Work], float] | None = None) -> Iterator[Estimate]:
    """Yield an estimate for every method of every task that lacks something."""
    trial = measure_work or short_trial
    for task, method in runner.units():
        missing = runner.missing_runs(task, method)
        trials = sum(run.trial for run in missing)
        runs = len(runner.seeds_of(task)) if trials else len(missing)
        if trials or runs:
            seconds, problem = _stored_seconds(runner, task, method), ""
            if seconds is None:
                try:
                    seconds = trial(missing[0].work)
                except PotluckError as error:
                    seconds, problem = math.nan, str(error)
            wider = _wider_trials(runner, task, method) if trials else 0
            yield Estimate(task.name, method, trials, runs, seconds, wider, problem)


def _wider_trials(runner: Runner, task: Task, method: str) -> int:
    """Return the most trials of further learning rates that the suite allows a method, less those that are planned."""
    suite = runner.suite
    per_rate = len(suite.candidates(task, method)) // len(task.rates)
    planned = len(runner.candidates(task, method)) // per_rate - len(task.rates)
    return (suite.tuning_wider - planned) * per_rate * len(suite.tuning_seeds)


def _stored_seconds(runner: Runner, task: Task, method: str) -> float | None:
    """Return the mean processor time of stored runs of a method on a task."""
    seconds = [
        row.core_seconds
        for row in runner.results.rows
        if (row.task, row.method) == (task.name, method) and row.core_seconds is not None
    ]
    return float(np.mean(seconds)) if seconds else None


def short_trial(work: Work, spent: Callable[[Work, int], float] | None = None) -> float:
    """Return the processor seconds of a whole run, from a short one and a longer one, so that start-up counts once.

    Both have whole periods of evaluation. The longer one is doubled until it takes `LONGER` seconds more, or it is the
    whole run. `spent` measures a run of so many rounds. Raises what the run raises.
    """
    measured = spent or _spent
    rounds = work.experiment.schedule.rounds
    short = max(SHORT_ROUNDS, work.experiment.evaluate.every)
    if work.kind in LINES or rounds <= short:
        return measured(work, rounds)
    first, more, length = measured(work, short), 0.0, short
    while more < LONGER and length < rounds:
        length = min(2 * length, rounds)
        more = measured(work, length) - first
    return first + max(0.0, more) * (rounds - short) / (length - short)


def _spent(work: Work, rounds: int) -> float:
    """Return the processor seconds of a run of so many rounds."""
    experiment = work.experiment.with_settings({"schedule.rounds": rounds})
    return float(measure(replace(work, experiment=experiment).text)["row"]["core_seconds"])
