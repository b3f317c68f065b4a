"""Run what a suite lacks: tuning trials first, then runs with the best settings."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.analysis.clients import fairness
from potluck.api import execute
from potluck.core.errors import PotluckError
from potluck.core.files import parse_json
from potluck.experiment import Experiment, parse_experiment
from potluck.runs.process_pool import run_processes
from potluck.runs.run import Run
from potluck.suites.provenance import experiment_digest, row_origin
from potluck.suites.safeguard import safeguard_details
from potluck.suites.store import Results, Row, Trial, thin_curve
from potluck.suites.suite import Suite, Task, Values

LAST = ("validation", "local", "received", "shared", "global")


def experiment_text(experiment: Experiment) -> str:
    """Return an experiment as text that another process reads."""
    return json.dumps(experiment.model_dump(mode="json", exclude_none=True))


def measure(text: str) -> dict[str, Any]:
    """Train an experiment in a folder that is forgotten, and give what a result needs of it."""
    experiment = parse_experiment(parse_json(text))
    with tempfile.TemporaryDirectory(prefix="potluck-benchmark-") as folder:
        run = execute(experiment, out=Path(folder) / "run")
        details = {**_details(run), **(_leaks(run) if experiment.engine.keep_answers else {})}
        return {"row": _row(run), "details": details, "validation": _validation(run)}


def _row(run: Run) -> dict[str, Any]:
    summary, newcomers = run.summary, run.summary.get("newcomers") or {}
    jobs = max(1.0, float(run.jobs[-1]) if len(run.jobs) else 0.0)
    return {
        "accuracy": run.best_accuracy,
        "final_accuracy": run.final_accuracy,
        "worst_tenth": fairness(run.client_accuracy.values()).worst,
        "macro_f1": _known(summary.get("final_macro_f1")),
        "calibration_error": _known(summary.get("final_calibration_error")),
        "newcomers": _known(newcomers.get("accuracy")),
        "newcomers_alone": _known(newcomers.get("alone")),
        "floats_up": run.per_client_round("floats_up"),
        "floats_down": run.per_client_round("floats_down"),
        "samples_per_job": run.total("trained_samples") / jobs,
        "seconds": float(summary.get("seconds", math.nan)),
    }


def _details(run: Run) -> dict[str, Any]:
    return {
        "curve": thin_curve([row.get("accuracy") for row in run.rounds]),
        "clock": _clock(run),
        "clients": [round(value, 5) for _, value in sorted(run.client_accuracy.items())],
        "last": _last(run),
        "notes": {
            name: thin_curve([row.get("notes", {}).get(name) for row in run.rounds]) for name in _notes(run)
        },
        **{name: run.summary[name] for name in ("attack", "privacy") if name in run.summary},
        **safeguard_details(run),
    }


def _leaks(run: Run) -> dict[str, Any]:
    """Return what the answers of a run that kept them give away."""
    from potluck.analysis.leak import find_leaks

    leaks = find_leaks(run.path).stored()
    rounded = [
        {**score, "score": round(score["score"], 5), "chance": round(score["chance"], 5)}
        for score in leaks["scores"]
    ]
    return {"leaks": {**leaks, "scores": rounded}}


def _last(run: Run) -> dict[str, float]:
    """Return the last accuracy under each protocol that was asked for, and on validation samples."""
    last: dict[str, float] = {}
    for row in run.rounds:
        for name, value in row.items():
            if name.startswith("accuracy_") and name.removeprefix("accuracy_") in LAST and value is not None:
                last[name.removeprefix("accuracy_")] = round(value, 5)
    return last


def _clock(run: Run) -> list[tuple[float, float]]:
    """Simulated seconds and accuracy where it was measured, on devices that have a clock."""
    curve = (
        run.curve("accuracy", "virtual_seconds") if run.experiment.get("devices", {}).get("fleet") else None
    )
    if curve is None:
        return []
    return [(round(float(x), 3), round(float(y), 5)) for x, y in zip(curve.x, curve.y, strict=True)]


def _notes(run: Run) -> list[str]:
    return sorted({name for row in run.rounds for name in row.get("notes") or {}})


def _validation(run: Run) -> float | None:
    """Return the last accuracy on validation samples."""
    values = [
        row.get("accuracy_validation") for row in run.rounds if row.get("accuracy_validation") is not None
    ]
    return values[-1] if values else None


def _known(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


Say = Callable[[str], None]


@dataclass(frozen=True)
class PlannedRun:
    """One run to do: a trial of a method's settings, or a result."""

    task: Task
    method: str
    settings: Values
    experiment: Experiment
    trial: bool

    @property
    def label(self) -> str:
        """Return a line that tells the state of the suite."""
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

    def missing_runs(self, task: Task, method: str) -> list[PlannedRun]:
        """Return what a method lacks on a task: trials, or else runs with its best settings, or nothing."""
        candidates = self.suite.candidates(task, method) if self.suite.trials else []
        trials = [self._trial(task, method, settings) for settings in candidates]
        tried = {result.experiment for result in self.results.trials}
        missing = [work for work in trials if experiment_digest(work.experiment) not in tried]
        if missing:
            return missing
        best = self.best(task, method)
        runs = [self._run(task, method, best, seed) for seed in self.seeds]
        done = {result.experiment for result in self.results.rows}
        return [work for work in runs if experiment_digest(work.experiment) not in done]

    def best(self, task: Task, method: str) -> Values:
        """Return the settings of the trial that was best on validation; of equals, the first tried."""
        candidates = self.suite.candidates(task, method)
        if not self.suite.trials:
            return candidates[0]
        scores = {trial.experiment: trial.validation for trial in self.results.trials}

        def score(settings: Values) -> float:
            validation = scores.get(experiment_digest(self._trial(task, method, settings).experiment))
            return -1.0 if validation is None else validation

        return max(candidates, key=score)

    def _trial(self, task: Task, method: str, settings: Values) -> PlannedRun:
        experiment = self.suite.experiment(task, method, self.suite.tuning_seed, settings, tuning=True)
        return PlannedRun(task, method, settings, experiment, trial=True)

    def _run(self, task: Task, method: str, settings: Values, seed: int) -> PlannedRun:
        return PlannedRun(
            task, method, settings, self.suite.experiment(task, method, seed, settings), trial=False
        )

    def count(self) -> tuple[int, int]:
        """Trials and runs that are still to do, as far as can be known."""
        trials = runs = 0
        for task, method in self.units():
            work = self.missing_runs(task, method)
            lacking = sum(item.trial for item in work)
            trials += lacking
            runs += len(self.seeds) if lacking else len(work)
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
                        under_way[pool.submit(measure, experiment_text(work.experiment))] = work
                if not under_way:
                    break
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
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
        settings, digest = json.dumps(work.settings), experiment_digest(work.experiment)
        return Trial(work.task.name, work.method, settings, validation, seconds, digest)

    def _as_row(self, work: PlannedRun, measured: dict[str, Any]) -> Row:
        identity: dict[str, Any] = {
            "task": work.task.name,
            "method": work.method,
            "seed": work.experiment.seed,
            "settings": json.dumps(work.settings),
            "experiment": experiment_digest(work.experiment),
            "command": self.command,
        }
        return Row(**{**identity, **measured, **row_origin()})


def _same_unit(first: PlannedRun, other: PlannedRun) -> bool:
    return (first.task.name, first.method) == (other.task.name, other.method)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
