"""The engine of a run: decided once, by what suits or by measuring, then on record; and made as it was decided."""

from __future__ import annotations

import logging
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
from potluck.engines.vectorized.decide import is_faster_together
from potluck.experiment import Experiment, read_experiment
from potluck.experiment.sections import EngineSettings
from potluck.federation.federation import BUILT, Federation
from potluck.federation.population import build_federation, device_names
from potluck.loop.attack import Attackers
from potluck.loop.jobs import Engine
from potluck.loop.worker import Saved, Worker, keep_freed_memory
from potluck.runs.resolve import Parts, Resolved

_log = logging.getLogger("potluck")
_crowds: dict[tuple[object, ...], int] = {}


def decide_engine(resolved: Resolved, file: Path) -> Resolved:
    """What `auto` means for engine, vectorisation and layout: what the run's file says, or else what suits."""
    federation, settings = resolved.federation, resolved.experiment.engine
    known = read_experiment(file).get("engine", {}) if file.exists() else {}
    decided: dict[str, Any] = {}
    if settings.vectorize == "auto":
        decided["engine.vectorize"] = known.get("vectorize") or _measured(federation)
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
    if several and (together or settings.name == "serial"):
        other = "engine.vectorize = 'on'" if together else "engine.name = 'serial'"
        raise PotluckError(
            f"engine.device = {settings.device!r} lists several devices; {other} works on one, so leave one out."
        )
    accelerated = resolved.federation.task.device.type != "cpu"
    name = known.get("name", "auto") if settings.name == "auto" else settings.name
    if accelerated and name in ("auto", "pool") and not together:
        return _on_accelerators(resolved, name, settings.workers or known.get("workers", 0))
    if name == "auto":
        name = "serial" if accelerated else "pool"
    if name == "pool" and not together:
        check_possible(anew=preferred(blueprint(resolved)))
    return {"engine.name": name}


def _on_accelerators(resolved: Resolved, name: str, workers: int) -> dict[str, Any]:
    """The pool with as many workers per device as were asked for or as a trial finds; serial where one would do."""
    settings, places = resolved.experiment.engine, device_names(resolved.experiment.engine.device)
    plan = blueprint(resolved)
    assert plan is not None, "populations of one's own are on the CPU"
    try:
        check_possible(anew=True)
        if reason := hindrance(plan):
            raise PotluckError(
                f"Worker processes on {settings.device} cannot be told what to build ({reason}); put it in a module "
                "of its own, or use --engine serial."
            )
        workers = workers or _crowd(resolved, plan, places)
    except PotluckError as error:
        if name == "pool" or len(places) > 1:
            raise
        _log.warning("%s Going on with the serial engine.", error)
        return {"engine.name": "serial"}
    if name == "auto" and workers * len(places) == 1:
        return {"engine.name": "serial"}
    return {"engine.name": "pool", "engine.workers": workers}


def _crowd(resolved: Resolved, plan: Blueprint, places: list[str]) -> int:
    """Workers per device by a trial; one serves all runs of this process with the same models, data and training."""
    experiment, federation = resolved.experiment, resolved.federation
    clients = federation.task.clients
    alike = (
        tuple(places),
        *federation.task.architectures,
        experiment.data,
        experiment.training,
        len(clients),
    )
    if alike not in _crowds:
        largest = max(clients, key=lambda info: federation.cost(info.index))
        _crowds[alike] = best_crowd(plan, places, largest.index, len(clients))[0]
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


def _measured(federation: Federation) -> str:
    with one_thread():
        return "on" if is_faster_together(federation.task, federation.client) else "off"


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
    if settings.vectorize == "on" or settings.name == "serial":
        kind = VectorizedEngine if settings.vectorize == "on" else SerialEngine
        return kind(worker, partial(default_budget, device) if memory is None else memory, work_folder)
    workers, cost = settings.workers or None, federation.cost
    if device.type == "cpu" and not preferred(blueprint):
        return PoolEngine(lambda: worker, workers, memory, work_folder, cost=cost)
    places, workers = device_names(settings.device), workers or (1 if device.type != "cpu" else None)
    return PoolEngine(
        lambda: worker, workers, memory, work_folder, cost=cost, blueprint=blueprint, places=places
    )


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
