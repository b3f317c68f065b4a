"""The engine of a run: chosen (configured, recorded or measured) while the run is resolved, then built."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.random import one_thread
from potluck.engines.pool import PoolEngine
from potluck.engines.pool.process import check_can_start, fork_problem
from potluck.engines.pool.spawn import Blueprint, pickling_error, prefers_spawn
from potluck.engines.pool.tune_workers import best_worker_count
from potluck.engines.serial import SerialEngine
from potluck.engines.tuning import is_stacking_faster, resolve_channels_last, stack_sizes, stacking_candidates
from potluck.engines.vectorized import VectorizedEngine
from potluck.engines.vectorized.engine import JobBatcher
from potluck.experiment import read_experiment
from potluck.experiment.sections import EngineSettings
from potluck.federation.federation import BUILT, Federation
from potluck.federation.population import device_names
from potluck.runs.folder import EXPERIMENT
from potluck.runs.plan import RunPlan
from potluck.wire.jobs import Engine
from potluck.worker.memory import default_budget, retain_freed_memory
from potluck.worker.worker import Worker

_log = logging.getLogger("potluck")


def recorded_engine(run: Path | None) -> dict[str, Any]:
    """Return the engine section that a run's folder records; empty for a new run."""
    if run is None or not (run / EXPERIMENT).exists():
        return {}
    section = read_experiment(run / EXPERIMENT).get("engine", {})
    return dict(section) if isinstance(section, Mapping) else {}


def choose_engine(plan: RunPlan, recorded: Mapping[str, Any], *, measure: bool = True) -> dict[str, Any]:
    """Return engine, worker count, vectorization and memory layout as settings: configured, recorded or measured.

    Without `measure`, what would have to be measured stays `auto`.
    """
    settings = plan.experiment.engine
    vectorize: str = settings.vectorize
    if vectorize == "auto":
        vectorize = recorded.get("vectorize") or (_measure_vectorize(plan) if measure else "auto")
    stacked = vectorize == "on"
    layout = _choose_layout(
        settings, plan.federation, recorded.get("channels_last"), stacked, measure=measure
    )
    chosen: dict[str, Any] = {"engine.vectorize": vectorize, "engine.channels_last": layout}
    if not measure:
        return chosen
    trial = replace(
        plan,
        experiment=plan.experiment.with_settings(chosen),
        federation=plan.federation.with_channels_last(layout),
    )
    return chosen | _choose_processes(trial, recorded, stacked)


def _choose_processes(plan: RunPlan, recorded: Mapping[str, Any], stacked: bool) -> dict[str, Any]:
    """Return the engine's name, and on accelerators the number of its workers."""
    settings = plan.experiment.engine
    if settings.name == "serial" and len(device_names(settings.device)) > 1:
        raise PotluckError(
            f"engine.device = {settings.device!r} lists several devices; engine.name = 'serial' works on one, so "
            "leave one out."
        )
    accelerated = plan.federation.task.device.type != "cpu"
    name = recorded.get("name", "auto") if settings.name == "auto" else settings.name
    if accelerated and name in ("auto", "pool"):
        return _choose_accelerated(plan, name, settings.workers or recorded.get("workers", 0), stacked)
    if name in ("auto", "pool"):
        name = _choose_pool_or_serial(plan)
    return {"engine.name": name}


def _choose_pool_or_serial(plan: RunPlan) -> str:
    """Return the pool, or serial if workers can be neither spawned nor safely forked and the pool is not configured."""
    blueprint = plan.blueprint()
    spawned = prefers_spawn(blueprint)
    check_can_start(spawned=spawned)
    problem = None if spawned else fork_problem()
    if problem is None:
        return "pool"
    reason = "nodes" if blueprint is None else pickling_error(blueprint)
    sentence = (
        f"engine.name = 'pool' cannot start workers: {problem}, and new processes cannot be sent what to build "
        f"({reason}); put it in a module of its own, or use --engine serial."
    )
    if plan.experiment.engine.name == "pool":
        raise PotluckError(sentence)
    _log.warning("%s Continuing with the serial engine.", sentence)
    return "serial"


def _choose_accelerated(plan: RunPlan, name: str, workers: int, stacked: bool) -> dict[str, Any]:
    """Return the pool with as many workers per device as configured or measured; serial if one process is enough."""
    device = plan.experiment.engine.device
    devices, blueprint = device_names(device), plan.blueprint()
    assert blueprint is not None, "federations that are objects are on the CPU"
    try:
        _check_spawn(blueprint, device)
        workers = workers or _measure_workers(plan, blueprint, _trial_clients(plan, stacked))[0]
    except PotluckError as error:
        if name == "pool" or len(devices) > 1:
            raise
        _log.warning("%s Continuing with the serial engine.", error)
        return {"engine.name": "serial"}
    if name == "auto" and workers * len(devices) == 1:
        return {"engine.name": "serial"}
    return {"engine.name": "pool", "engine.workers": workers}


def _check_spawn(blueprint: Blueprint, device: str) -> None:
    """Check that worker processes on a device can be started and can receive what they have to build."""
    check_can_start(spawned=True)
    if reason := pickling_error(blueprint):
        raise PotluckError(
            f"Worker processes on {device} cannot receive what they have to build ({reason}); put it in a module of "
            "its own, or use --engine serial."
        )


def _trial_clients(plan: RunPlan, stacked: bool) -> list[int]:
    """Return the clients of a trial: those of one stack, or the most expensive client."""
    federation = plan.federation
    if stacked and (clients := stacking_candidates(federation.task, federation.client)):
        return clients
    return [max(federation.task.clients, key=lambda info: federation.cost(info.index)).index]


def _measure_workers(plan: RunPlan, blueprint: Blueprint, clients: Sequence[int]) -> tuple[int, float]:
    """Return the best number of workers per device by a trial, and their speed in samples per second."""
    experiment, federation = plan.experiment, plan.federation
    cohort = experiment.schedule.cohort(len(federation.task.clients))
    batches = len(stack_sizes(federation.task, cohort)) if len(clients) > 1 else cohort
    settings = (*federation.task.architectures, experiment.data, experiment.training, cohort)
    devices = tuple(device_names(experiment.engine.device))
    return _run_trial(_Trial(devices, tuple(clients), batches, settings, blueprint))


@dataclass(frozen=True)
class _Trial:
    """What a trial of worker counts depends on, and the blueprint that its workers are built from."""

    devices: tuple[str, ...]
    clients: tuple[int, ...]
    batches: int
    settings: tuple[object, ...]
    blueprint: Blueprint = field(compare=False)


@lru_cache(maxsize=2)  # a trial takes seconds; the methods of a comparison share it, stacked and one by one
def _run_trial(trial: _Trial) -> tuple[int, float]:
    workers, speeds = best_worker_count(trial.blueprint, list(trial.devices), trial.clients, trial.batches)
    return workers, speeds[workers]


def _choose_layout(
    settings: EngineSettings,
    federation: Federation,
    recorded: Sequence[str] | None,
    stacked: bool,
    *,
    measure: bool,
) -> tuple[str, ...]:
    """Return the architectures with channels-last layout: none in stacks; nodes build their networks themselves."""
    names = settings.channels_last
    if settings.nodes and names == BUILT:
        return names
    built = federation.built_channels_last()
    if stacked or settings.name == "flower":
        possible = () if stacked else built
        if names in (BUILT, ("auto",), possible):
            return possible
        other = "engine.vectorize = 'on'" if stacked else "engine.name = 'flower'"
        raise PotluckError(f"engine.channels_last is not supported with {other}; leave one of them out.")
    if recorded is not None and names in (BUILT, ("auto",)):
        return tuple(recorded)
    if names == BUILT or (names == ("auto",) and not measure):
        return built
    with one_thread():
        return resolve_channels_last(names, federation)


def _measure_vectorize(plan: RunPlan) -> str:
    """Measure whether stacks of clients train faster, on the device and with the engine of the run."""
    settings, federation = plan.experiment.engine, plan.federation
    step = plan.experiment.schedule.answers_per_step(len(federation.task.clients))
    if federation.task.device.type != "cpu" and settings.name != "serial" and step > 1:
        return "on" if _is_faster_in_stacks(plan) else "off"
    workers = 1 if settings.name == "serial" else settings.workers or len(os.sched_getaffinity(0))
    with one_thread():
        faster = is_stacking_faster(federation.task, federation.client, step, workers)
    return "on" if faster else "off"


def _is_faster_in_stacks(plan: RunPlan) -> bool:
    """Compare the best number of processes with one client at a time and with stacks, on an accelerator."""
    federation, blueprint = plan.federation, plan.blueprint()
    stack = stacking_candidates(federation.task, federation.client)
    if blueprint is None or not stack:
        return False
    try:
        _check_spawn(blueprint, plan.experiment.engine.device)
        _, stacked = _measure_workers(plan, blueprint, stack)
        _, alone = _measure_workers(plan, blueprint, stack[:1])
    except PotluckError:  # this network cannot be stacked, or other processes cannot build it
        return False
    return stacked > alone


def build_engine(
    settings: EngineSettings,
    worker: Worker,
    federation: Federation,
    work_folder: Path | None = None,
    blueprint: Blueprint | None = None,
) -> Engine:
    """Build an engine for this worker; its files go to `work_folder`, or to the folder of temporary files.

    The pool's processes on accelerators build their own workers from `blueprint`.
    """
    retain_freed_memory()
    memory = int(settings.memory * 1e9) or None
    device = federation.task.device
    batcher = JobBatcher(federation.task) if settings.vectorize == "on" else None
    if settings.name == "serial":
        budget = partial(default_budget, device) if memory is None else memory
        if batcher is not None:
            return VectorizedEngine(worker, batcher, budget, work_folder)
        return SerialEngine(worker, budget, work_folder)
    pool = partial(
        PoolEngine,
        lambda: worker,
        memory=memory,
        spill_dir=work_folder,
        cost=federation.cost,
        batcher=batcher,
    )
    if device.type == "cpu" and not prefers_spawn(blueprint):
        return pool(workers=settings.workers or None)
    workers = settings.workers or (1 if device.type != "cpu" else None)
    return pool(workers=workers, blueprint=blueprint, devices=device_names(settings.device))
