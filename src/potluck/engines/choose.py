"""The engine that an experiment asks for."""

from __future__ import annotations

from pathlib import Path

from potluck.engines.memory import default_budget, keep_freed_memory
from potluck.engines.pool import PoolEngine
from potluck.engines.pool.anew import Blueprint, preferred
from potluck.engines.serial import SerialEngine
from potluck.engines.vectorized import VectorizedEngine
from potluck.experiment.sections import EngineSettings
from potluck.federation.federation import Federation
from potluck.federation.population import device_names
from potluck.loop.jobs import Engine
from potluck.loop.worker import Worker


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
        return kind(worker, default_budget(device) if memory is None else memory, work_folder)
    workers, cost = settings.workers or None, federation.cost
    if device.type == "cpu" and not preferred(blueprint):
        return PoolEngine(lambda: worker, workers, memory, work_folder, cost=cost)
    places, workers = device_names(settings.device), workers or (1 if device.type != "cpu" else None)
    return PoolEngine(
        lambda: worker, workers, memory, work_folder, cost=cost, blueprint=blueprint, places=places
    )
