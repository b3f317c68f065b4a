"""The engine of a run: decided once, by what suits or by measuring, then on record; and made as it was decided."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.random import one_thread
from potluck.engines.channels_last import chosen as chosen_layouts
from potluck.engines.memory import default_budget
from potluck.engines.pool import PoolEngine
from potluck.engines.pool.anew import Blueprint, hindrance, preferred
from potluck.engines.pool.crowd import best_crowd
from potluck.engines.pool.process import check_possible
from potluck.engines.serial import SerialEngine
from potluck.engines.vectorized import VectorizedEngine
from potluck.engines.vectorized.decide import is_faster_together, team_sizes, team_to_try
from potluck.engines.vectorized.teams import Teams
from potluck.experiment import Experiment, read_experiment
from potluck.experiment.sections import EngineSettings
from potluck.federation.federation import BUILT, Federation
from potluck.federation.population import build_federation, device_names
from potluck.loop.attack import Attackers
from potluck.loop.jobs import Engine
from potluck.loop.worker import Saved, Worker, keep_freed_memory
from potluck.runs.resolve import Parts, Resolved

_log = logging.getLogger("potluck")
_crowds: dict[tuple[object, ...], tuple[int, float]] = {}


def decide_engine(resolved: Resolved, file: Path) -> Resolved:
    """What `auto` means for engine, vectorisation and layout: what the run's file says, or else what suits."""
    federation, settings = resolved.federation, resolved.experiment.engine
    known = read_experiment(file).get("engine", {}) if file.exists() else {}
    decided: dict[str, Any] = {}
    if settings.vectorize == "auto":
        decided["engine.vectorize"] = known.get("vectorize") or _measured(resolved)
    together = decided.get("engine.vectorize", settings.vectorize) == "on"
    decided["engine.channels_last"] = _layout(settings, federation, known.get("channels_last"), together)
    resolved = replace(
        resolved,
        experiment=resolved.experiment.changed(decided),
        federation=federation.laid_out(decided["engine.channels_last"]),
    )
    chosen = _engine(resolved, known, together)
    return replace(resolved, experiment=resolved.experiment.changed(chosen))


def _engine(resolved: Resolved, known: Mapping[str, Any], together: bool) -> dict[str, Any]:
    """The engine, and how many workers it has on accelerators."""
    settings = resolved.experiment.engine
    several = len(device_names(settings.device)) > 1
    if several and settings.name == "serial":
        raise PotluckError(
            f"engine.device = {settings.device!r} lists several devices; engine.name = 'serial' works on one, so "
            "leave one out."
        )
    accelerated = resolved.federation.task.device.type != "cpu"
    name = known.get("name", "auto") if settings.name == "auto" else settings.name
    if accelerated and name in ("auto", "pool"):
        return _on_accelerators(resolved, name, settings.workers or known.get("workers", 0), together)
    if name == "auto":
        name = "pool"
    if name == "pool":
        check_possible(anew=preferred(blueprint(resolved)))
    return {"engine.name": name}


def _on_accelerators(resolved: Resolved, name: str, workers: int, together: bool) -> dict[str, Any]:
    """The pool with as many workers per device as were asked for or as a trial finds; serial where one would do."""
    settings, places = resolved.experiment.engine, device_names(resolved.experiment.engine.device)
    plan = blueprint(resolved)
    assert plan is not None, "populations of one's own are on the CPU"
    try:
        _check_told(plan, settings.device)
        workers = workers or _crowd(resolved, plan, places, _tried(resolved, together))[0]
    except PotluckError as error:
        if name == "pool" or len(places) > 1:
            raise
        _log.warning("%s Going on with the serial engine.", error)
        return {"engine.name": "serial"}
    if name == "auto" and workers * len(places) == 1:
        return {"engine.name": "serial"}
    return {"engine.name": "pool", "engine.workers": workers}


def _check_told(plan: Blueprint, device: str) -> None:
    """Refuse where worker processes on a device could not be started, or not be told what to build."""
    check_possible(anew=True)
    if reason := hindrance(plan):
        raise PotluckError(
            f"Worker processes on {device} cannot be told what to build ({reason}); put it in a module of its own, "
            "or use --engine serial."
        )


def _tried(resolved: Resolved, together: bool) -> list[int]:
    """The clients of a trial: those of a stack, or the largest alone."""
    federation = resolved.federation
    if together and (team := team_to_try(federation.task, federation.client)):
        return team
    return [max(federation.task.clients, key=lambda info: federation.cost(info.index)).index]


def _crowd(resolved: Resolved, plan: Blueprint, places: list[str], tried: Sequence[int]) -> tuple[int, float]:
    """Workers per device by a trial, and their speed in samples per second.

    One trial serves all runs of this process with the same models, data and training.
    """
    experiment, federation = resolved.experiment, resolved.federation
    cohort = experiment.schedule.cohort(len(federation.task.clients))
    alike = (
        tuple(places),
        *federation.task.architectures,
        experiment.data,
        experiment.training,
        cohort,
        tuple(tried),
    )
    if alike not in _crowds:
        teams = len(team_sizes(federation.task, cohort)) if len(tried) > 1 else cohort
        workers, speeds = best_crowd(plan, places, tried, teams)
        _crowds[alike] = workers, speeds[workers]
    return _crowds[alike]


def _layout(
    settings: EngineSettings, federation: Federation, known: Sequence[str] | None, together: bool
) -> tuple[str, ...]:
    """The architectures whose channels lie last: a stack has them first, and nodes build their networks themselves."""
    words = settings.channels_last
    if settings.nodes and words == BUILT:
        return words
    built = federation.built_channels_last()
    if together or settings.name == "flower":
        usual = () if together else built
        if words in (BUILT, ("auto",), usual):
            return usual
        other = "engine.vectorize = 'on'" if together else "engine.name = 'flower'"
        raise PotluckError(f"engine.channels_last does not go with {other}; leave one of them out.")
    if known is not None and words in (BUILT, ("auto",)):
        return tuple(known)
    if words == BUILT:
        return built
    with one_thread():
        return chosen_layouts(words, federation)


def _measured(resolved: Resolved) -> str:
    """Whether clients train together: as the engine that will do it would, on its device."""
    settings, federation = resolved.experiment.engine, resolved.federation
    step = resolved.experiment.schedule.answers_per_step(len(federation.task.clients))
    if federation.task.device.type != "cpu" and settings.name != "serial" and step > 1:
        return "on" if _faster_in_stacks(resolved) else "off"
    workers = 1 if settings.name == "serial" else settings.workers or len(os.sched_getaffinity(0))
    with one_thread():
        faster = is_faster_together(federation.task, federation.client, step, workers)
    return "on" if faster else "off"


def _faster_in_stacks(resolved: Resolved) -> bool:
    """Compare as many processes as pay on accelerators, each with a client at a time, with as many with stacks."""
    federation, plan = resolved.federation, blueprint(resolved)
    places = device_names(resolved.experiment.engine.device)
    team = team_to_try(federation.task, federation.client)
    if plan is None or not team:
        return False
    try:
        _check_told(plan, resolved.experiment.engine.device)
        _, together = _crowd(resolved, plan, places, team)
        _, alone = _crowd(resolved, plan, places, team[:1])
    except PotluckError:  # this network cannot be stacked, or only this process could build it
        return False
    return together > alone


# -- as it was decided -----------------------------------------------------------------------------------------


def make_engine(
    settings: EngineSettings,
    worker: Worker,
    federation: Federation,
    work_folder: Path | None = None,
    blueprint: Blueprint | None = None,
) -> Engine:
    """An engine for this worker; its files go below `work_folder`, or where temporary files usually go.

    From `blueprint` the pool's processes on accelerators make workers of their own.
    """
    keep_freed_memory()
    memory = int(settings.memory * 1e9) or None
    device = federation.task.device
    teams = Teams(federation.task) if settings.vectorize == "on" else None
    if settings.name == "serial":
        budget = partial(default_budget, device) if memory is None else memory
        if teams is not None:
            return VectorizedEngine(worker, teams, budget, work_folder)
        return SerialEngine(worker, budget, work_folder)
    pool = partial(
        PoolEngine, lambda: worker, memory=memory, spill_dir=work_folder, cost=federation.cost, teams=teams
    )
    if device.type == "cpu" and not preferred(blueprint):
        return pool(workers=settings.workers or None)
    workers = settings.workers or (1 if device.type != "cpu" else None)
    return pool(workers=workers, blueprint=blueprint, places=device_names(settings.device))


# -- a run as other processes can build it again ---------------------------------------------------------------


@dataclass(frozen=True)
class RunBlueprint:
    """The decided experiment, what was brought as objects, and where clients begin that a checkpoint holds."""

    experiment: Experiment
    method: Method[Any, Any, Any]
    parts: Parts
    saved: Saved | None = None
    attackers: Attackers | None = None

    def worker(self, device: str) -> Worker:
        """A worker whose clients live on this device; data are read and dealt again, with the same result."""
        experiment, parts = self.experiment.changed({"engine.device": device}), self.parts
        federation = build_federation(
            experiment, self.method, data=parts.data, models=parts.models, partition=parts.partition
        )
        federation = federation.laid_out(experiment.engine.channels_last)
        privacy = experiment.privacy if experiment.uses("privacy") else None
        return Worker(self.method, federation.client, self.saved, privacy, self.attackers)


def blueprint(resolved: Resolved, saved: Saved | None = None) -> RunBlueprint | None:
    """The blueprint of a run; None where its population is an object, which is not built but there.

    The server's state stays with the server.
    """
    if resolved.experiment.objects and {"federation", "nodes"} & set(resolved.experiment.objects):
        return None
    parts = replace(resolved.parts, method=None, state=None)
    return RunBlueprint(resolved.experiment, resolved.method, parts, saved, resolved.attackers)
