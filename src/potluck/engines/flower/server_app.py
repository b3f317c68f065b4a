"""The Flower app of the server: the loop of every other engine, with jobs over the grid."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from potluck.core.errors import PotluckError
from potluck.engines.flower.engine import FlowerEngine
from potluck.engines.flower.roll import Roll
from potluck.experiment import Experiment, parse_experiment
from potluck.nodes.federation import server_federation
from potluck.nodes.node import EXPERIMENT, MEGABYTE
from potluck.session import Run, execute, is_asynchronous

OUT, RESUME, COMMAND, TROUBLE = "out", "resume", "command", "trouble"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run configuration; a sentence for the user goes into the file it names."""
    try:
        serve(grid, context.run_config)
    except PotluckError as error:
        if trouble := str(context.run_config.get(TROUBLE, "")):
            Path(trouble).write_text(str(error), encoding="utf-8")
        raise


def serve(grid: Grid, config: Mapping[str, Any], **timing: Any) -> Run:
    """Gather the nodes, then do what `potluck run` does anywhere else."""
    experiment = parse_experiment(json.loads(str(config[EXPERIMENT])))
    method, settings = experiment.build_method(), experiment.engine
    roll = Roll(grid, int(settings.max_megabytes * MEGABYTE), **timing)
    roll.gather(settings.nodes or experiment.partition.clients, settings.wait)
    federation = None
    if settings.nodes:
        federation = server_federation(
            experiment, method, roll.introductions, lambda client: roll.first_weights(client, settings.wait)
        )
    engine = FlowerEngine(
        roll,
        method,
        realtime=is_asynchronous(experiment, method) or experiment.schedule.over_select > 1,
        deadline=experiment.schedule.deadline or math.inf,
        **timing,
    )
    return execute(
        experiment,
        method=method,
        federation=federation,
        engine=engine,
        out=Path(str(config[OUT])),
        resume=bool(config.get(RESUME, False)),
        command=str(config.get(COMMAND, "")),
    )


def run_config(experiment: Experiment, run: str, out: Path, **more: str | bool) -> dict[str, str | bool]:
    """The run configuration with which both apps do this experiment."""
    return {
        EXPERIMENT: json.dumps(experiment.model_dump(mode="json", exclude_none=True)),
        "run": run,
        "state": str(out / "nodes"),
        OUT: str(out),
        **more,
    }
