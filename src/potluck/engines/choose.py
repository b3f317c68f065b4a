"""The engine that an experiment asks for."""

from __future__ import annotations

from pathlib import Path

from potluck.core.errors import PotluckError
from potluck.engines.pool import PoolEngine
from potluck.engines.serial import SerialEngine
from potluck.engines.vectorized import VectorizedEngine
from potluck.experiment.sections import EngineSettings
from potluck.federation.federation import Federation
from potluck.loop.jobs import Engine
from potluck.loop.worker import Worker


def make_engine(
    settings: EngineSettings, worker: Worker, federation: Federation, work_folder: Path | None = None
) -> Engine:
    """An engine for this worker; its files go below `work_folder`, or where temporary files usually go."""
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
