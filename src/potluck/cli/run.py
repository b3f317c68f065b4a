"""`potluck run`: one method, from question to table and report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli import options


def run(
    target: Annotated[
        str, typer.Argument(metavar="METHOD|FILE.toml", help="a method's name or an experiment file")
    ],
    data: options.Data = None,
    data_root: options.DataRoot = None,
    partition: options.Partition = None,
    models: options.Models = None,
    clients: options.Clients = None,
    rounds: options.Rounds = None,
    participation: options.Participation = None,
    engine: options.Engine = None,
    workers: options.Workers = None,
    memory: options.Memory = None,
    server: options.Server = None,
    ca: options.Authority = None,
    simulation: options.Simulation = None,
    device: options.Device = None,
    vectorize: options.Vectorize = None,
    fleet: options.Fleet = None,
    assign: options.Assign = None,
    seed: options.Seed = None,
    out: Annotated[Path | None, typer.Option("--out", help="the run's folder; else one in runs/")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    checkpoint_every: options.CheckpointEvery = None,
    keep_answers: options.KeepAnswers = None,
    settings: options.Settings = None,
    track: options.Track = None,
    quiet: options.Quiet = False,
) -> None:
    """Run a method or an experiment file; ends with a table, a run folder and a report."""
    told = locals()
    from potluck.api import execute
    from potluck.cli.display import show_runs
    from potluck.cli.progress import progress
    from potluck.experiment import asked_values, base_values, flag_values, parse_experiment

    experiment = parse_experiment(asked_values(base_values(target), flag_values(told), settings))
    with progress(experiment.method.name, quiet=quiet) as callbacks:
        finished = execute(
            experiment,
            out=out,
            resume=resume,
            callbacks=callbacks,
            track=track or (),
            command=shlex.join(["potluck", *sys.argv[1:]]),
        )
    if finished.was_finished:
        typer.echo(f"The run in {finished.path} is finished already; nothing to do.")
    show_runs([finished.path], report=finished.path)
