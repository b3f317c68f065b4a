"""`potluck run` and `potluck resume`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli import options

if TYPE_CHECKING:
    from potluck.experiment import Experiment


@options.with_flags(
    *options.EXPERIMENT,
    *options.ENGINE,
    *("server", "ca", "simulation"),
    *options.DEVICES,
    *("seed", "checkpoint_every", "keep_answers"),
)
def run(
    target: Annotated[
        str, typer.Argument(metavar="METHOD|FILE.toml", help="a method's name or an experiment file")
    ],
    flags: options.Flags,
    out: Annotated[
        Path | None, typer.Option("--out", help="the run's folder; default: a new one in runs/")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue the run in --out")] = False,
    settings: options.Settings = None,
    track: options.Track = None,
    quiet: options.Quiet = False,
    seeds: Annotated[str | None, typer.Option("--seeds", hidden=True)] = None,
) -> None:
    """Run a method or an experiment file; print a table, and write a run folder and a report."""
    from potluck.core.errors import PotluckError
    from potluck.experiment import merge_settings, parse_experiment, read_target

    if seeds is not None:
        raise PotluckError(
            f"--seeds {seeds!r}: run trains once, with --seed; for several seeds: potluck compare {target} --seeds "
            f"{seeds}."
        )
    experiment = parse_experiment(merge_settings(read_target(target), flags, settings))
    _train(experiment, out, command_line(), resume=resume, track=track, quiet=quiet)


@options.with_flags("rounds", *options.ENGINE, "checkpoint_every")
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of the run")],
    flags: options.Flags,
    track: options.Track = None,
    quiet: options.Quiet = False,
) -> None:
    """Continue a run from its last checkpoint; the result equals that of an uninterrupted run.

    With more --rounds than before, a finished run is extended.
    """
    from potluck.experiment import merge_settings, parse_experiment, read_experiment
    from potluck.runs.folder import experiment_file

    file = experiment_file(folder)
    experiment = parse_experiment(merge_settings(read_experiment(file), flags))
    _train(experiment, folder, f"potluck run {file}", resume=True, track=track, quiet=quiet)


def command_line() -> str:
    """Return the command of this process, as one would type it."""
    return shlex.join(["potluck", *sys.argv[1:]])


def _train(
    experiment: Experiment,
    out: Path | None,
    command: str,
    *,
    resume: bool,
    track: list[str] | None,
    quiet: bool,
) -> None:
    from potluck.api import execute
    from potluck.cli.progress import progress, show_runs

    with progress(experiment.method.name, experiment.schedule.rounds, quiet=quiet) as callbacks:
        finished = execute(
            experiment, out=out, resume=resume, callbacks=callbacks, track=track or (), command=command
        )
    if finished.was_finished:
        typer.echo(f"The run in {finished.path} is finished already; nothing to do.")
    show_runs([finished.path], report=finished.path)
