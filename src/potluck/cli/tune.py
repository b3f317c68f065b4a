"""`potluck tune`: settings chosen by validation samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli import options


def tune(
    target: Annotated[
        str, typer.Argument(metavar="METHOD|FILE.toml", help="a method's name or an experiment file")
    ],
    space: Annotated[
        Path | None, typer.Option("--space", help="what to vary (TOML); else what the method's paper tunes")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="try all of: --grid method.mu=0,0.1,1 (repeat for more settings)"),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", help="how many settings to try", min=1)] = 20,
    data: options.Data = None,
    data_root: options.DataRoot = None,
    partition: options.Partition = None,
    models: options.Models = None,
    clients: options.Clients = None,
    rounds: options.Rounds = None,
    participation: options.Participation = None,
    seed: options.Seed = None,
    settings: options.Settings = None,
    jobs: Annotated[int, typer.Option("--jobs", help="trials at once; 0: one per core", min=0)] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the study")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the study in --out")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no line per trial")] = False,
) -> None:
    """Try settings, score them on validation samples, give up hopeless ones; ends with the best experiment file."""
    told = locals()
    from potluck.cli.progress import counted
    from potluck.experiment import asked_values, base_values, flag_values
    from potluck.tuning.outcome import write_outcome
    from potluck.tuning.prepare import chosen_space, prepared
    from potluck.tuning.study import Study, words_of

    values, name = prepared(asked_values(base_values(target), flag_values(told), settings))
    what = chosen_space(name, space, grid or ())
    what.check(values)
    folder = _folder(out, name, resume)
    study = Study(values, what, folder, trials)
    typer.echo(f"{study.trials} trials of {', '.join(what.choices)}; the study is {folder}")
    found = study.run(
        jobs or os.cpu_count() or 1, options.silent if quiet else counted(study.trials, typer.echo)
    )
    best = write_outcome(values, what, found, folder)
    typer.echo(f"Best on validation: {found[0].score:.1%} with {words_of(found)}")
    typer.echo(f"Run it with: potluck run {best}")


def _folder(out: Path | None, name: str, resume: bool) -> Path:
    from potluck.core.errors import PotluckError
    from potluck.tuning.study import JOURNAL

    folder = out or Path("runs") / f"tune-{name.rpartition(':')[2].lower()}"
    if (folder / JOURNAL).exists() and not resume:
        raise PotluckError(
            f"--out {str(folder)!r} holds a study already; pass --resume to go on with it, or choose another folder."
        )
    return folder
