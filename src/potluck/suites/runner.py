"""Run what a suite lacks, tuning trials first, then runs with the best settings; or estimate its cost."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from potluck.core.errors import PotluckError
from potluck.runs.process_pool import run_processes
from potluck.suites.baselines import LINES
from potluck.suites.provenance import row_origin
from potluck.suites.store import Results, Row, Trial
from potluck.suites.suite import Suite, Task, Values
from potluck.suites.work import Work, measure

Say = Callable[[str], None]
SHORT_ROUNDS = 2
"""Rounds of the shorter of two runs from which the time of a round is taken."""
LONGER = 1.0
"""Seconds that the longer run takes more, at least; a tenth of a second of warming up then matters little."""


@dataclass(frozen=True)
class PlannedRun:
    """One run to do: a trial of a method's settings, or a result."""

    task: Task
    method: str
    settings: Values
    work: Work
    trial: bool

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.work.experiment.seed

    @property
    def label(self) -> str:
        """A few words for progress lines."""
        trial = f"trial {json.dumps(self.settings)}, " if self.trial else ""
        return f"{self.task.name}, {self.method}, {trial}seed {self.seed}"


@dataclass
class Runner:
    """A suite's work, given what has been measured already."""

    suite: Suite
    results: Results
    tasks: Sequence[Task]
    methods: Sequence[str]
    seeds: Sequence[int] | None = None
    """Other seeds than those of each task."""
    command: str = ""

    def units(self) -> Iterator[tuple[Task, str]]:
        """Tasks and the methods asked for that can do them."""
        for task in self.tasks:
            for method in task.methods:
                if method in self.methods:
                    yield task, method

    def missing_runs(self, task: Task, method: str) -> list[PlannedRun]:
        """Return what a method lacks on a task: trials, or else runs with its best settings, or nothing."""
        tried = {result.experiment for result in self.results.trials}
        missing = [run for run in self.trials(task, method) if run.work.digest not in tried]
        if missing:
            return missing
        runs = self._plan(task, method, [self.best(task, method)], self.seeds_of(task))
        finished = {result.experiment for result in self.results.rows}
        return [run for run in runs if run.work.digest not in finished]

    def seeds_of(self, task: Task) -> Sequence[int]:
        """Return the seeds of a task's results."""
        return task.seeds if self.seeds is None else self.seeds

    def trials(self, task: Task, method: str) -> list[PlannedRun]:
        """Return all trials of a method on a task: every candidate on every tuning seed."""
        if not self.suite.is_tuned(method):
            return []
        return self._plan(task, method, self.candidates(task, method), self.suite.tuning_seeds, trial=True)

    def candidates(self, task: Task, method: str) -> list[Values]:
        """Return the settings to try, given the trials so far.

        Where the best learning rate is the lowest or the highest that was tried, the next one beyond it is added, for
        every method alike and as often as the suite says.
        """
        added: list[float] = []
        candidates = self.suite.candidates(task, method)
        while self._may_widen(method) and len(added) < self.suite.tuning_wider:
            scores = [self._score(task, method, settings) for settings in candidates]
            best = _best_candidate(candidates, scores)
            tried = [*task.rates, *added]
            if None in scores or best["training.lr"] not in (min(tried), max(tried)):
                break
            rate = best["training.lr"]
            added.append(neighbour_rate(rate, up=rate == max(tried)))
            candidates = self.suite.candidates(task, method, added)
        return candidates

    def _may_widen(self, method: str) -> bool:
        return self.suite.is_tuned(method) and method not in self.suite.without_rate

    def best(self, task: Task, method: str) -> Values:
        """Return the settings with the best mean on validation samples over the tuning seeds; of equals, the first."""
        candidates = self.candidates(task, method)
        return _best_candidate(candidates, [self._score(task, method, settings) for settings in candidates])

    def _score(self, task: Task, method: str, settings: Values) -> float | None:
        """Return the mean on validation samples over the tuning seeds; None where a trial is still to do."""
        stored = {trial.experiment: trial.validation for trial in self.results.trials}
        runs = self._plan(task, method, [settings], self.suite.tuning_seeds, trial=True)
        if not runs or any(run.work.digest not in stored for run in runs):
            return None
        accuracies = [stored[run.work.digest] for run in runs]
        return float(np.mean([-1.0 if value is None else value for value in accuracies]))

    def _plan(
        self,
        task: Task,
        method: str,
        candidates: Sequence[Values],
        seeds: Sequence[int],
        *,
        trial: bool = False,
    ) -> list[PlannedRun]:
        return [
            PlannedRun(
                task, method, settings, self.suite.work(task, method, seed, settings, tuning=trial), trial
            )
            for settings in candidates
            for seed in seeds
        ]

    def count(self) -> tuple[int, int]:
        """Trials and runs that are still to do, as far as can be known."""
        trials = runs = 0
        for task, method in self.units():
            work = self.missing_runs(task, method)
            lacking = sum(item.trial for item in work)
            trials += lacking
            runs += len(self.seeds_of(task)) if lacking else len(work)
        return trials, runs

    def run(self, jobs: int, say: Say) -> list[str]:
        """Do everything, several at a time; gives a sentence for each run that failed. Results are kept one by one."""
        waiting = list(self.units())
        failures: list[str] = []
        under_way: dict[Future[dict[str, Any]], PlannedRun] = {}
        with run_processes(jobs) as pool:
            while waiting or under_way:
                while waiting and len(under_way) < jobs:
                    for work in self.missing_runs(*waiting.pop(0)):
                        under_way[pool.submit(measure, work.work.text)] = work
                if not under_way:
                    break
                finished, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in finished:
                    work = under_way.pop(future)
                    self._finish(work, future, failures, say)
                    if not any(_same_unit(other, work) for other in under_way.values()) and work.trial:
                        waiting.insert(0, (work.task, work.method))
        return failures

    def _finish(
        self, work: PlannedRun, future: Future[dict[str, Any]], failures: list[str], say: Say
    ) -> None:
        try:
            outcome = future.result()
        except PotluckError as error:
            failures.append(f"{work.label}: {error}")
            say(f"{work.label}: failed")
            if work.trial:
                self.results.add_trial(self._as_trial(work, None, 0.0))
            return
        if work.trial:
            self.results.add_trial(self._as_trial(work, outcome["validation"], outcome["row"]["seconds"]))
            say(f"{work.label}: validation {_percent(outcome['validation'])}")
        else:
            self.results.add(self._as_row(work, outcome["row"]), outcome["details"])
            say(f"{work.label}: {_percent(outcome['row']['accuracy'])}")

    def _as_trial(self, work: PlannedRun, validation: float | None, seconds: float) -> Trial:
        settings, commit = json.dumps(work.settings), row_origin()["commit"]
        return Trial(
            work.task.name, work.method, settings, validation, seconds, work.work.digest, work.seed, commit
        )

    def _as_row(self, work: PlannedRun, measured: dict[str, Any]) -> Row:
        identity: dict[str, Any] = {
            "task": work.task.name,
            "method": work.method,
            "seed": work.seed,
            "settings": json.dumps(work.settings),
            "experiment": work.work.digest,
            "command": self.command,
        }
        return Row(**{**identity, **measured, **row_origin()})


def neighbour_rate(rate: float, *, up: bool) -> float:
    """Return the next learning rate of the grid ..., 0.03, 0.1, 0.3, 1, 3, ...

    >>> neighbour_rate(0.3, up=True), neighbour_rate(0.1, up=False)
    (1.0, 0.03)
    """
    exponent = round(2 * math.log10(rate)) + (1 if up else -1)
    return float(f"{10 ** (exponent / 2):.0e}")


def _best_candidate(candidates: Sequence[Values], scores: Sequence[float | None]) -> Values:
    best = max(range(len(candidates)), key=lambda n: -1.0 if (score := scores[n]) is None else score)
    return candidates[best]


def _same_unit(first: PlannedRun, other: PlannedRun) -> bool:
    return (first.task.name, first.method) == (other.task.name, other.method)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


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
    if method in suite.without_rate:
        return 0
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
