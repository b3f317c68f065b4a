"""Does what a suite lacks: first the trials of each method, then its runs with the settings that were best."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from potluck.benchmark.digests import code_digest, experiment_digest
from potluck.benchmark.measure import experiment_text, measure
from potluck.benchmark.store import Results, Row, Trial, origin
from potluck.benchmark.suite import Suite, Task, Values
from potluck.core.errors import PotluckError
from potluck.experiment import Experiment
from potluck.runs.several import run_processes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """One run to do: a trial of a method's settings, or a result."""

    task: Task
    method: str
    settings: Values
    experiment: Experiment
    trial: bool

    @property
    def label(self) -> str:
        """A few words for whoever watches."""
        what = json.dumps(self.settings) if self.trial else f"seed {self.experiment.seed}"
        return f"{self.task.name}, {self.method}, {'trial ' if self.trial else ''}{what}"


@dataclass
class Runner:
    """A suite's work, given what has been measured already."""

    suite: Suite
    results: Results
    tasks: Sequence[Task]
    methods: Sequence[str]
    seeds: Sequence[int]
    command: str = ""

    def units(self) -> Iterator[tuple[Task, str]]:
        """Tasks and the methods asked for that can do them."""
        for task in self.tasks:
            for method in task.methods:
                if method in self.methods:
                    yield task, method

    def next_work(self, task: Task, method: str) -> list[Work]:
        """What a method lacks on a task: trials, or else runs with its best settings, or nothing."""
        candidates = self.suite.candidates(task, method) if self.suite.trials else []
        trials = [self._trial(task, method, settings) for settings in candidates]
        known = {one.experiment for one in self.results.trials}
        missing = [work for work in trials if experiment_digest(work.experiment) not in known]
        if missing:
            return missing
        best = self.best(task, method)
        runs = [self._run(task, method, best, seed) for seed in self.seeds]
        done = {one.experiment for one in self.results.rows}
        return [work for work in runs if experiment_digest(work.experiment) not in done]

    def best(self, task: Task, method: str) -> Values:
        """The settings of the trial that was best on validation; of equals, the first tried."""
        candidates = self.suite.candidates(task, method)
        if not self.suite.trials:
            return candidates[0]
        scores = {one.experiment: one.validation for one in self.results.trials}

        def score(settings: Values) -> float:
            found = scores.get(experiment_digest(self._trial(task, method, settings).experiment))
            return -1.0 if found is None else found

        return max(candidates, key=score)

    def _trial(self, task: Task, method: str, settings: Values) -> Work:
        experiment = self.suite.experiment(task, method, self.suite.tuning_seed, settings, tuning=True)
        return Work(task, method, settings, experiment, trial=True)

    def _run(self, task: Task, method: str, settings: Values, seed: int) -> Work:
        return Work(task, method, settings, self.suite.experiment(task, method, seed, settings), trial=False)

    def count(self) -> tuple[int, int]:
        """Trials and runs that are still to do, as far as can be known."""
        trials = runs = 0
        for task, method in self.units():
            work = self.next_work(task, method)
            lacking = sum(one.trial for one in work)
            trials += lacking
            runs += len(self.seeds) if lacking else len(work)
        return trials, runs

    def run(self, jobs: int, say: Say) -> list[str]:
        """Do everything, several at a time; gives a sentence for each run that failed. Results are kept one by one."""
        waiting = list(self.units())
        failures: list[str] = []
        under_way: dict[Future[dict[str, Any]], Work] = {}
        with run_processes(jobs) as pool:
            while waiting or under_way:
                while waiting and len(under_way) < jobs:
                    for work in self.next_work(*waiting.pop(0)):
                        under_way[pool.submit(measure, experiment_text(work.experiment))] = work
                if not under_way:
                    break
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    work = under_way.pop(future)
                    self._finish(work, future, failures, say)
                    if not any(_same_unit(one, work) for one in under_way.values()) and work.trial:
                        waiting.insert(0, (work.task, work.method))
        return failures

    def _finish(self, work: Work, future: Future[dict[str, Any]], failures: list[str], say: Say) -> None:
        try:
            found = future.result()
        except PotluckError as error:
            failures.append(f"{work.label}: {error}")
            say(f"{work.label}: failed")
            if work.trial:
                self.results.add_trial(self._as_trial(work, None, 0.0))
            return
        if work.trial:
            self.results.add_trial(self._as_trial(work, found["validation"], found["row"]["seconds"]))
            say(f"{work.label}: validation {_percent(found['validation'])}")
        else:
            self.results.add(self._as_row(work, found["row"]), found["details"])
            say(f"{work.label}: {_percent(found['row']['accuracy'])}")

    def _as_trial(self, work: Work, validation: float | None, seconds: float) -> Trial:
        digest, code = experiment_digest(work.experiment), code_digest(work.method)
        settings = json.dumps(work.settings)
        return Trial(work.task.name, work.method, settings, validation, seconds, digest, code)

    def _as_row(self, work: Work, found: dict[str, Any]) -> Row:
        known: dict[str, Any] = {
            "task": work.task.name,
            "method": work.method,
            "seed": work.experiment.seed,
            "settings": json.dumps(work.settings),
            "experiment": experiment_digest(work.experiment),
            "code": code_digest(work.method),
            "command": self.command,
        }
        return Row(**{**known, **found, **origin()})


def _same_unit(one: Work, other: Work) -> bool:
    return (one.task.name, one.method) == (other.task.name, other.method)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
