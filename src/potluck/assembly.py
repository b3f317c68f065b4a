"""The parts of a run as its experiment describes them: schedule, evaluation and engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from potluck.clock import with_clock
from potluck.codec import encoded_size
from potluck.core.errors import PotluckError
from potluck.core.evaluation import Evaluation
from potluck.core.job import Engine
from potluck.core.method import Method
from potluck.core.residents import Saved
from potluck.core.robust import Averaging
from potluck.core.schedule import Schedule
from potluck.core.worker import Worker
from potluck.engines.faults import Faults, FaultyEngine
from potluck.engines.pool import PoolEngine
from potluck.engines.serial import SerialEngine
from potluck.engines.vectorized import VectorizedEngine
from potluck.experiment import Experiment
from potluck.federation import Federation
from potluck.privacy import make_privacy


def is_asynchronous(experiment: Experiment, method: Method[Any, Any, Any]) -> bool:
    """Whether the server acts on every answer; `auto` is the method's own mode."""
    mode = experiment.schedule.mode
    return mode == "async" or (mode == "auto" and method.asynchronous)


def make_schedule(experiment: Experiment, method: Method[Any, Any, Any], federation: Federation) -> Schedule:
    """The schedule of the experiment; `auto` is the method's own mode."""
    settings = experiment.schedule
    asynchronous = is_asynchronous(experiment, method)
    buffered = asynchronous or settings.buffer or settings.concurrency
    if buffered and (settings.deadline or settings.over_select > 1):
        raise PotluckError(
            "schedule.deadline and schedule.over_select need whole rounds: set schedule.mode = 'sync', and neither "
            "schedule.buffer nor schedule.concurrency."
        )
    usual = 1 if asynchronous else 0
    plan = Schedule(
        rounds=settings.rounds,
        participation=settings.participation,
        buffer=settings.buffer or usual,
        concurrency=settings.concurrency or usual,
        min_clients=settings.min_clients,
        on_failure=settings.on_failure,
        deadline=settings.deadline or math.inf,
        over_select=settings.over_select,
        staleness_power=settings.staleness_power,
        max_payload_mb=settings.max_payload_mb,
        averaging=Averaging(settings.robust, settings.trim),
    )
    return with_clock(plan, experiment, method, federation)


def make_evaluation(experiment: Experiment, federation: Federation) -> Evaluation:
    """The evaluation of the experiment, with the common test set where there is one."""
    settings = experiment.evaluate
    return Evaluation(
        settings.protocol, settings.also, settings.every, settings.clients, federation.shared_test
    )


def check_evaluation(experiment: Experiment, federation: Federation) -> None:
    """Refuse a protocol that the data cannot serve."""
    wanted = {experiment.evaluate.protocol, *experiment.evaluate.also} & {"shared", "global"}
    if wanted and federation.shared_test is None:
        raise PotluckError(
            f"evaluate.protocol = {min(wanted)!r} needs a common test set; give the federation shared_test=(x, y)."
        )


def make_engine(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    federation: Federation,
    saved: Saved | None = None,
    engine: Engine | None = None,
    *,
    work_folder: Path | None = None,
) -> Engine:
    """The engine of the experiment, with this federation's clients as they were `saved`, and faults if asked for.

    Files that the engine needs while it works go below `work_folder`, or where temporary files usually go.
    """
    worker = Worker(method, federation.client, encoded_size, saved, make_privacy(experiment.privacy))
    engine = engine or _plain_engine(experiment, worker, federation, work_folder)
    faults = Faults(**experiment.faults.model_dump())
    return FaultyEngine(engine, faults, experiment.seed) if faults else engine


def _plain_engine(
    experiment: Experiment, worker: Worker, federation: Federation, work_folder: Path | None
) -> Engine:
    settings = experiment.engine
    memory = int(settings.memory * 1e9) or None
    if settings.vectorize == "on":
        return VectorizedEngine(worker, memory, work_folder)
    if settings.name == "serial":
        return SerialEngine(worker, memory, work_folder)
    if federation.task.device.type != "cpu":
        raise PotluckError(
            f"engine.name = 'pool' works on the CPU, not on engine.device = {settings.device!r}; use serial."
        )
    return PoolEngine(lambda: worker, settings.workers or None, memory, work_folder, cost=federation.cost)


@contextmanager
def working(engine: Engine) -> Iterator[Engine]:
    """An engine that is closed whatever happens."""
    try:
        yield engine
    finally:
        engine.close()
