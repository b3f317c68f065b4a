"""The plan of a comparison: its runs are checked, and their time is estimated, before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from potluck.core.errors import PotluckError, unknown
from potluck.core.needs import Need
from potluck.core.random import one_thread
from potluck.engines.tuning import BATCHES, time_training
from potluck.experiment import Experiment
from potluck.runs.engine import recorded_engine
from potluck.runs.folder import EXPERIMENT, SUMMARY, check_folder
from potluck.runs.plan import RunPlan
from potluck.runs.resolve import resolve

OVERHEAD_SECONDS = 2.0
"""Seconds of a run besides training: start of workers, tests, report."""


@dataclass
class Plan:
    """The runs of a comparison, each with its folder, and remarks about them."""

    runs: list[tuple[Experiment, Path]]
    seconds: float = 0.0
    done: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    models: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def sentences(self) -> list[str]:
        """Describe the comparison in a few lines."""
        first = self.runs[0][0]
        methods = list(dict.fromkeys(experiment.method.name for experiment, _ in self.runs))
        seeds = list(dict.fromkeys(experiment.seed for experiment, _ in self.runs))
        lines = [
            f"{_count(len(self.runs), 'run')} ({_count(len(methods), 'method')}, {_count(len(seeds), 'seed')}) of "
            f"{_count(first.schedule.rounds, 'round')} on {first.data.name} into {self.runs[0][1].parent}"
            + (f", {self.done} of them finished already" if self.done else "")
            + (f": about {duration(self.seconds)}." if self.seconds else ".")
        ]
        lines += [f"Left out: {name}. {reason}" for name, reason in self.left_out.items()]
        public = [e.method.name for e, _ in self.runs if Need.PUBLIC_DATA in e.build_method().requires()]
        if public and len(set(public)) < len(methods) and isinstance(first.data.public, float):
            lines.append(
                f"data.public = {first.data.public:g} of the rows are held out from all methods, because "
                f"{', '.join(dict.fromkeys(public))} needs public data; leave it out, or name another set there."
            )
        first_models = self.models.get(methods[0])
        differing = [
            f"{name} ({', '.join(models)})" for name, models in self.models.items() if models != first_models
        ]
        if differing:
            lines.append(
                f"With other models than {methods[0]}, so their lines are not comparable: {', '.join(differing)}."
            )
        return lines


def check_plan(
    runs: Sequence[tuple[Experiment, Path]], *, reference: str | None, resume: bool, lenient: bool = False
) -> Plan:
    """Check every run of a comparison; with `lenient`, runs that fail the check are left out and named."""
    _check_folders_differ([path for _, path in runs])
    plan, speeds = Plan([]), dict[str, float]()
    for experiment, path in runs:
        name = experiment.method.name
        if name in plan.left_out:
            continue
        try:
            _check_run(experiment, path, plan, speeds, resume=resume)
        except PotluckError as error:
            if not lenient:
                raise
            plan.left_out[name] = str(error)
    if not plan.runs:
        raise PotluckError(next(iter(plan.left_out.values())))
    _check_reference(reference, [experiment.method.name for experiment, _ in plan.runs])
    return plan


def _check_run(
    experiment: Experiment, path: Path, plan: Plan, speeds: dict[str, float], *, resume: bool
) -> None:
    if experiment.engine.name == "flower":  # nodes check it when it runs
        plan.runs.append((experiment, path))
        return
    exists = (path / EXPERIMENT).exists()
    run_plan = resolve(experiment, recorded=recorded_engine(path), measure=exists)
    if exists:
        check_folder(path, run_plan.experiment.to_toml(), resume=resume)
    plan.models.setdefault(experiment.method.name, run_plan.experiment.models.names)
    plan.runs.append((experiment, path))
    if resume and (path / SUMMARY).exists():
        plan.done += 1
    else:
        plan.seconds += OVERHEAD_SECONDS + training_seconds(run_plan, speeds)


def _check_folders_differ(paths: Sequence[Path]) -> None:
    for path in paths:
        if paths.count(path) > 1:
            raise PotluckError(
                f"Two runs have the folder {str(path)!r}; name each method, file and seed once, and give files of one "
                "method different names."
            )


def _check_reference(reference: str | None, methods: Sequence[str]) -> None:
    """Check that the reference is a method of the comparison, or one of its lines: `fedgh (server_lr=0.1)`."""
    if reference is not None and reference.partition(" (")[0] not in methods:
        raise unknown("reference method", reference, methods)


def training_seconds(run_plan: RunPlan, speeds: dict[str, float]) -> float:
    """Estimate the training time of a run from a few batches of each architecture; `speeds` caches them."""
    experiment, federation = run_plan.experiment, run_plan.federation
    clients, training = federation.task.clients, federation.training
    with one_thread():
        for info in clients:
            if info.samples and info.architecture not in speeds:
                speeds[info.architecture] = _samples_per_second(run_plan, info.index)
    work = sum(
        run_plan.method.workload(info.samples, training) / speeds[info.architecture]
        for info in clients
        if info.samples
    )
    cohort = experiment.schedule.cohort(len(clients))
    serial = experiment.engine.name == "serial"
    workers = 1 if serial else min(experiment.engine.workers or os.cpu_count() or 1, cohort)
    return experiment.schedule.rounds * work * cohort / len(clients) / workers


def _samples_per_second(run_plan: RunPlan, index: int) -> float:
    seconds = 0.0
    for _ in range(2):  # the first one includes loading and allocation
        client = run_plan.federation.client(index)
        samples = min(len(client.train), BATCHES * client.batch_size())
        seconds = time_training([client])
    return samples / max(seconds, 1e-9)


def duration(seconds: float) -> str:
    """Format an estimated time."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return _count(round(seconds / size), unit)
    return _count(max(10, round(seconds, -1)), "second")


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'' if number == 1 else 's'}"
