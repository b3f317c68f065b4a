"""The Flower app of the server: the loop of every other engine, with jobs over the grid."""

from __future__ import annotations

import json
import logging
import math
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment, parse_experiment, read_target
from potluck.flower.engine import FlowerEngine
from potluck.flower.grid import CONNECTION_ERRORS, CONNECTION_LOST, ConnectionLost, RetryingGrid
from potluck.flower.outage import OutageWait
from potluck.flower.registry import NodeRegistry
from potluck.flower.start import start
from potluck.loop.callbacks import Callback
from potluck.loop.loop import Loop
from potluck.runs import folder
from potluck.runs.folder import WAITING, FolderInUse, write_atomic
from potluck.runs.run import Run
from potluck.runs.train import run_plan


def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run configuration; what went wrong is left in the file it names."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s", stream=sys.stdout)
    error_file = str(context.run_config.get("trouble", ""))
    try:
        serve(RetryingGrid(grid), context.run_config)
    # Nothing is wrong with the run here: whoever follows it sends it again.
    except FolderInUse as error:
        raise ConnectionLost(
            f"{CONNECTION_LOST}: the process before this one still has the run's folder."
        ) from error
    except (ConnectionLost, *CONNECTION_ERRORS) as error:
        raise ConnectionLost(f"{CONNECTION_LOST}: {type(error).__name__}.") from error
    except Exception as error:
        if error_file:
            message = str(error) if isinstance(error, PotluckError) else f"{type(error).__name__}: {error}"
            write_atomic(Path(error_file), message)
        raise


def serve(grid: Grid | RetryingGrid, config: Mapping[str, Any], **timing: Any) -> Run:
    """Gather the nodes, then do what `potluck run` does anywhere else."""
    experiment = parse_configuration(str(config["experiment"]))
    out = Path(str(config.get("out") or folder.new_folder(Path("runs"), f"{experiment.method.name}-flower")))
    method, resume = experiment.build_method(), bool(config.get("resume", False))
    started = start(grid, experiment, method, out, resume=resume, **timing)
    schedule = started.plan.experiment.schedule
    engine = FlowerEngine(
        started.registry,
        method,
        realtime=schedule.mode == "async" or schedule.over_select > 1,
        outage=OutageWait(schedule.patience, max(1, schedule.min_clients), out / WAITING),
        cooldown=experiment.engine.cooldown,
        deadline=schedule.round_timeout,
        lost_after=experiment.engine.lost_after or math.inf,
        **timing,
    )
    return run_plan(
        started.plan,
        engine=engine,
        out=out,
        resume=resume,
        command=str(config.get("command", "")),
        callbacks=[started, RunIdFile(out / "run-id", started.registry)],
    )


def parse_configuration(text: str) -> Experiment:
    """Return the experiment of a run configuration: JSON, an experiment file on the server, or a method's name."""
    if text.startswith("{"):
        values = json.loads(text)
    else:
        values = read_target(text)
    return parse_experiment({**values, "engine": {**values.get("engine", {}), "name": "flower"}})


class RunIdFile(Callback):
    """Gives the run an id, the same when it is resumed, under which nodes keep what belongs to it."""

    def __init__(self, path: Path, registry: NodeRegistry) -> None:
        self.path, self.registry = path, registry

    def on_start(self, loop: Loop) -> None:
        """Read the id of a run that goes on from a checkpoint, or make one: a new run finds no old answers."""
        if loop.progress.step == 0 or not self.path.exists():
            write_atomic(self.path, uuid.uuid4().hex)
        self.registry.assignment = replace(
            self.registry.assignment, run=self.path.read_text(encoding="utf-8")
        )


app = ServerApp()
app.main()(main)
