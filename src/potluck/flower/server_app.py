"""The Flower app of the server: the loop of every other engine, with jobs over the grid."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment, parse_experiment, read_experiment
from potluck.flower.engine import FlowerEngine
from potluck.flower.patient import LOST, TROUBLE, ConnectionLost, PatientGrid
from potluck.flower.roll import Roll
from potluck.flower.start import start
from potluck.loop.callbacks import Callback
from potluck.loop.loop import Loop
from potluck.runs import folder
from potluck.runs.folder import InUse, write_atomic
from potluck.runs.run import Run
from potluck.runs.train import run_resolved


def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run configuration; what went wrong is left in the file it names."""
    trouble = str(context.run_config.get("trouble", ""))
    try:
        serve(PatientGrid(grid), context.run_config)
    # Nothing is wrong with the run here: whoever follows it sends it again.
    except InUse as error:
        raise ConnectionLost(f"{LOST}: the process before this one still has the run's folder.") from error
    except (ConnectionLost, *TROUBLE) as error:
        raise ConnectionLost(f"{LOST}: {type(error).__name__}.") from error
    except Exception as error:
        if trouble:
            told = str(error) if isinstance(error, PotluckError) else f"{type(error).__name__}: {error}"
            write_atomic(Path(trouble), told)
        raise


def serve(grid: Grid | PatientGrid, config: Mapping[str, Any], **timing: Any) -> Run:
    """Gather the nodes, then do what `potluck run` does anywhere else."""
    experiment = configured(str(config["experiment"]))
    out = Path(str(config.get("out") or folder.new_folder(Path("runs"), f"{experiment.method.name}-flower")))
    method, resume = experiment.build_method(), bool(config.get("resume", False))
    found = start(grid, experiment, method, out, resume=resume, **timing)
    schedule = found.resolved.experiment.schedule
    engine = FlowerEngine(
        found.roll,
        method,
        realtime=schedule.mode == "async" or schedule.over_select > 1,
        deadline=schedule.patience,
        lost_after=experiment.engine.lost_after or math.inf,
        **timing,
    )
    return run_resolved(
        found.resolved,
        engine=engine,
        out=out,
        resume=resume,
        command=str(config.get("command", "")),
        callbacks=[found, RunId(out / "run-id", found.roll)],
    )


def configured(text: str) -> Experiment:
    """The experiment of a run configuration: JSON, an experiment file on the server, or a method's name."""
    if text.startswith("{"):
        values = json.loads(text)
    else:
        values = read_experiment(Path(text)) if text.endswith(".toml") else {"method": {"name": text}}
    return parse_experiment({**values, "engine": {**values.get("engine", {}), "name": "flower"}})


class RunId(Callback):
    """Gives the run an id, the same when it is resumed, under which nodes keep what belongs to it."""

    def __init__(self, path: Path, roll: Roll) -> None:
        self.path, self.roll = path, roll

    def on_start(self, loop: Loop) -> None:
        """Read the id of a run that goes on from a checkpoint, or make one: who begins anew finds no old answers."""
        if loop.progress.step == 0 or not self.path.exists():
            write_atomic(self.path, uuid.uuid4().hex)
        self.roll.assignment = replace(self.roll.assignment, run=self.path.read_text(encoding="utf-8"))


app = ServerApp()
app.main()(main)
