"""`potluck tune`: choose settings by validation samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli import options


@options.with_flags(*options.EXPERIMENT, "seed")
def tune(
    target: Annotated[
        str, typer.Argument(metavar="METHOD|FILE.toml", help="a method's name or an experiment file")
    ],
    flags: options.Flags,
    space: Annotated[
        Path | None,
        typer.Option("--space", help="search space (TOML); default: what the method's paper tunes"),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="try all of: --grid method.mu=0,0.1,1 (repeat for more settings)"),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", help="number of trials", min=1)] = 20,
    settings: options.Settings = None,
    jobs: Annotated[int, typer.Option("--jobs", help="trials at once; 0: one per core", min=0)] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the study")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue the study in --out")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no line per trial")] = False,
) -> None:
    """Try settings, score them on validation samples, stop poor ones early; write the best experiment file."""
    from potluck.cli.progress import count_lines
    from potluck.experiment import merge_settings, read_target
    from potluck.tuning.results import write_results
    from potluck.tuning.space import choose_space, prepare_values
    from potluck.tuning.study import Study, describe_best

    values, name = prepare_values(merge_settings(read_target(target), flags, settings))
    search_space = choose_space(name, space, grid or ())
    search_space.check(values)
    folder = _folder(out, name, resume)
    study = Study(values, search_space, folder, trials)
    typer.echo(f"{study.trials} trials of {', '.join(search_space.choices)}; the study is {folder}")
    result = study.run(
        jobs or os.cpu_count() or 1, options.silent if quiet else count_lines(study.trials, typer.echo)
    )
    best = write_results(values, search_space, result, folder)
    typer.echo(f"Best on validation: {result[0].score:.1%} with {describe_best(result)}")
    typer.echo(f"Run it with: potluck run {best}")


def _folder(out: Path | None, name: str, resume: bool) -> Path:
    from potluck.core.errors import PotluckError
    from potluck.tuning.study import JOURNAL

    folder = out or Path("runs") / f"tune-{name.rpartition(':')[2].lower()}"
    if (folder / JOURNAL).exists() and not resume:
        raise PotluckError(
            f"--out {str(folder)!r} holds a study already; pass --resume to continue it, or choose another folder."
        )
    return folder
