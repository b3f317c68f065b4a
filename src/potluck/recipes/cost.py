"""What a run will cost on this machine, measured by two short rounds of the method itself on a few of its samples."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from potluck.core.random import one_thread
from potluck.core.task import ClientInfo
from potluck.data import parse_split
from potluck.engines.serial import SerialEngine
from potluck.experiment import Experiment
from potluck.federation.federation import Federation
from potluck.loop.loop import Loop
from potluck.runs.plan import RunPlan
from potluck.runs.resolve import resolve
from potluck.wire.jobs import Answer, Failure, Job
from potluck.worker.memory import retain_freed_memory
from potluck.worker.worker import Worker

BATCHES, LEAST_SAMPLES = 4, 64
"""Full batches, and samples at the least, that a client of the trial trains on."""

LARGE_BATCH, LARGE_BATCHES = 128, 2
"""Of batches from this size on, fewer suffice."""

LEAST_SECONDS = 0.15
"""Jobs that are shorter are measured again with more epochs."""

LONG_TRIAL = 5.0
"""Processor seconds of a trial that is long enough to count as it is."""


@dataclass(frozen=True)
class Cost:
    """Core seconds of a run by their parts; `at_work` clients train at once and `workers` processes test."""

    training: float
    testing: float
    server: float
    max_concurrent: int
    workers: int

    @property
    def core_seconds(self) -> float:
        """The whole."""
        return self.training + self.testing + self.server

    @property
    def seconds(self) -> float:
        """Wall time on an idle machine: clients in parallel, the server by itself."""
        return self.training / self.max_concurrent + self.testing / self.workers + self.server


@dataclass
class TrialCosts:
    """Core seconds per architecture: of a client's first job, of a later one, and of a tested sample."""

    first: dict[str, float] = field(default_factory=dict)
    later: dict[str, float] = field(default_factory=dict)
    tested: dict[str, float] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    epochs: int = 1
    server: float = 0.0
    """Per client and round, outside of jobs."""


class Estimator:
    """Estimates runs; what was measured for one serves every other that trains the same way."""

    def __init__(self) -> None:
        self._measured: dict[str, TrialCosts] = {}

    def cost(self, experiment: Experiment) -> Cost:
        """Return what a run will cost from its first round to its last test."""
        resolved = resolve(experiment)
        trial = trial_experiment(resolved)
        key = trial.to_toml()
        if key not in self._measured:
            self._measured[key] = measure_trial(trial, experiment.training.epochs)
        return extrapolate_cost(resolved, self._measured[key])


def trial_experiment(resolved: RunPlan) -> Experiment:
    """Return an experiment of two rounds with one client per architecture and a few batches for each."""
    experiment, federation = resolved.experiment, resolved.federation
    names = experiment.models.names
    clients = max(1, len(federation.task.architectures))
    size = experiment.training.batch_size or math.ceil(federation.task.mean_client_samples)
    batches = LARGE_BATCHES if size >= LARGE_BATCH else BATCHES
    samples = min(max(LEAST_SAMPLES, batches * size), math.ceil(federation.task.mean_client_samples))
    protocol = "received" if experiment.evaluate.protocol == "local" else experiment.evaluate.protocol
    changes: dict[str, Any] = {
        "seed": 0,
        "schedule.rounds": 2,
        "schedule.participation": 1.0,
        "schedule.mode": "sync",
        "partition.rule": "iid",
        "partition.clients": clients,
        "models.names": names,
        "data.limit": _rows(experiment, federation, clients * samples),
        "training.epochs": min(1, experiment.training.epochs),
        "evaluate.protocol": protocol,
        "evaluate.every": 2,
        "evaluate.clients": "all",
        "engine.name": "serial",
    }
    if _warm_up(experiment):
        changes["method"] = experiment.method.model_copy(update={"warm_up": 1})
    return experiment.with_settings(changes)


def _rows(experiment: Experiment, federation: Federation, samples: int) -> int:
    """Return so many rows of the data that clients have that many training samples together."""
    parts = parse_split(experiment.data.split)
    share = parts[0] / sum(parts) if experiment.evaluate.protocol in ("local", "received") else 5 / 6
    public = experiment.data.public if isinstance(experiment.data.public, float) else 0.1
    return math.ceil(samples / (share * (1 - public))) + federation.task.num_classes


def _warm_up(experiment: Experiment) -> int:
    """Rounds in which the method only prepares; 0 for one that has no such option."""
    return int((experiment.method.model_extra or {}).get("warm_up") or 0)


# -- the trial -----------------------------------------------------------------------------------------------------


class TimedEngine(SerialEngine):
    """The serial engine with the processor time of every job."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.times: list[tuple[Job, Answer, float]] = []

    def results(self) -> Iterator[Answer | Failure]:
        """Do queued jobs one by one, each with its time."""
        while self._jobs:
            job, before = self._jobs.popleft(), time.process_time()
            answer = self.worker.run(job)
            if isinstance(answer, Answer):
                self.times.append((job, answer, time.process_time() - before))
            yield answer


def measure_trial(trial: Experiment, epochs: int) -> TrialCosts:
    """Run a trial; again where it was short, with more of the experiment's epochs if its jobs were too short to tell.

    Kernels are prepared when they first run, so that the first trial of a short one shows mostly that.
    """
    started = time.process_time()
    costs = _run(trial)
    if time.process_time() - started > LONG_TRIAL:
        return costs
    shortest = min(costs.later.values(), default=LEAST_SECONDS)
    more = min(epochs, math.ceil(LEAST_SECONDS / max(shortest, 1e-3)))
    return _run(trial.with_settings({"training.epochs": more}))


def _run(trial: Experiment) -> TrialCosts:
    resolved = resolve(trial)
    federation = resolved.federation
    retain_freed_memory()
    engine = TimedEngine(Worker(resolved.method, federation.client))
    started = time.process_time()
    try:
        with one_thread():
            loop = Loop(
                resolved.method,
                federation.task,
                engine,
                resolved.experiment.schedule,
                resolved.experiment.evaluate,
                shared_test=federation.shared_test,
                newcomers=resolved.newcomers,
            )
            loop.run()
    finally:
        engine.close()
    spent = time.process_time() - started
    server = (spent - sum(seconds for _, _, seconds in engine.times)) / (2 * len(federation.task.clients))
    return _by_architecture(engine.times, federation.task.clients, trial.training.epochs, max(0.0, server))


def _by_architecture(
    times: Sequence[tuple[Job, Answer, float]], clients: Sequence[ClientInfo], epochs: int, server: float
) -> TrialCosts:
    costs = TrialCosts(epochs=epochs, server=server)
    for job, answer, seconds in times:
        kind = clients[job.client].architecture
        if job.kind == "train":
            (costs.later if job.number else costs.first)[kind] = seconds
            costs.samples[kind] = clients[job.client].samples
        elif tested := sum(score.samples for score in answer.scores.values()):
            costs.tested[kind] = seconds / tested  # the last test, which every client has
    return costs


# -- from the trial to the run -------------------------------------------------------------------------------------


def extrapolate_cost(resolved: RunPlan, costs: TrialCosts) -> Cost:
    """Return the cost of all rounds from what a few samples cost."""
    experiment, task = resolved.experiment, resolved.federation.task
    schedule, rounds = experiment.schedule, experiment.schedule.rounds
    able = [info for info in task.clients if info.samples]
    cohort = schedule.cohort(len(task.clients))
    jobs = rounds * cohort / max(1, len(able))  # of each client, on average
    training = sum(_training(resolved, info, costs, jobs) for info in able)
    evaluations = math.ceil(rounds / experiment.evaluate.every)
    testing = evaluations * _tests(resolved, costs) + _tests(resolved, costs, final=True)
    workers = experiment.engine.workers or os.cpu_count() or 1
    workers = 1 if experiment.engine.name == "serial" else workers
    max_concurrent = min(schedule.max_concurrent(len(task.clients)), workers)
    return Cost(training, testing, costs.server * cohort * rounds, max_concurrent, workers)


def _training(resolved: RunPlan, info: ClientInfo, costs: TrialCosts, jobs: float) -> float:
    """Core seconds of all jobs of a client; the first may hold more than the others, a warm-up less than the rest."""
    experiment, kind = resolved.experiment, info.architecture
    if kind not in costs.first:
        kind = max(costs.first, key=lambda name: costs.first[name])
    first, later = costs.first[kind], costs.later.get(kind, costs.first[kind])
    samples = costs.samples[kind]
    trial = experiment.with_settings({"training.epochs": costs.epochs}).training
    work = resolved.method.workload(info.samples, experiment.training)
    scale = work / max(1, resolved.method.workload(samples, trial))
    if warm_up := min(_warm_up(experiment), experiment.schedule.rounds):
        share = warm_up / experiment.schedule.rounds
        return jobs * scale * (share * first + (1 - share) * later)
    extra = max(0.0, first - later) * info.samples / samples
    return jobs * scale * later + min(1.0, jobs) * extra


def _tests(resolved: RunPlan, costs: TrialCosts, *, final: bool = False) -> float:
    """Core seconds of the tests of a round, or of all clients once at the end."""
    experiment, federation = resolved.experiment, resolved.federation
    task, evaluation = federation.task, experiment.evaluate
    dearest = max(costs.tested.values(), default=0.0)
    if evaluation.protocol in ("shared", "global"):
        size = len(federation.shared_test or ())
        tested = range(len(task.clients)) if final else evaluation.population(task)
        return sum(size * costs.tested.get(task.clients[index].architecture, dearest) for index in tested)
    seconds = sum(
        (len(member.test) + info.validation) * costs.tested.get(info.architecture, dearest)
        for member, info in zip(federation.members, task.clients, strict=True)
    )
    local = evaluation.protocol == "local" and not final
    return seconds * (experiment.schedule.cohort(len(task.clients)) / len(task.clients) if local else 1.0)
