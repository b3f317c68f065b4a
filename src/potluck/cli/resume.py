"""`potluck resume`: go on with a run that was stopped, needing nothing but its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potluck.cli import options


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of the run")],
    rounds: options.Rounds = None,
    engine: options.Engine = None,
    workers: options.Workers = None,
    memory: options.Memory = None,
    device: options.Device = None,
    checkpoint_every: options.CheckpointEvery = None,
    track: options.Track = None,
    quiet: options.Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint; the result is that of a run that was never stopped.

    With more --rounds than it had, a finished run is extended.
    """
    told = locals()
    from potluck.api import execute
    from potluck.cli.display import show_runs
    from potluck.cli.progress import progress
    from potluck.core.errors import PotluckError
    from potluck.experiment import asked_values, flag_values, parse_experiment, read_experiment
    from potluck.runs.folder import EXPERIMENT

    file = folder / EXPERIMENT
    if not file.exists():
        raise PotluckError(f"{str(folder)!r} is no run folder (it has no {EXPERIMENT}); check the path.")
    experiment = parse_experiment(asked_values(read_experiment(file), flag_values(told), None))
    with progress(experiment.method.name, quiet=quiet) as callbacks:
        finished = execute(
            experiment,
            out=folder,
            resume=True,
            callbacks=callbacks,
            track=track or (),
            command=f"potluck run {file}",
        )
    if finished.was_finished:
        typer.echo(f"The run in {finished.path} is finished already; nothing to do.")
    show_runs([finished.path], report=finished.path)
