"""`potluck compare`: one table, one picture, one significance test."""

from __future__ import annotations

import copy
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli import options
from potluck.cli.run import command_line

if TYPE_CHECKING:
    from potluck.cli.plan import Plan
    from potluck.experiment import Experiment

Target = Annotated[
    float | None,
    typer.Option("--target", help="accuracy in (0, 1]: show rounds, traffic and time to reach it"),
]
Reference = Annotated[
    str | None, typer.Option("--reference", help="method that the others are tested against")
]

Columns = Annotated[
    str | None,
    typer.Option("--columns", help="comma list of columns, such as accuracy,best,f1,ece,nll"),
]


@options.with_flags(*options.EXPERIMENT, *options.ENGINE, *options.DEVICES)
def compare(
    what: Annotated[
        list[str], typer.Argument(metavar="METHOD…|RUN…", help="methods (or all), or run folders")
    ],
    flags: options.Flags,
    seeds: Annotated[str, typer.Option("--seeds", help="each method runs once per seed: 0,1,2 or 0-2")] = "0",
    target: Target = None,
    reference: Reference = None,
    columns: Columns = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for the runs, the tables and the report")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="keep finished runs in --out, do the others")
    ] = False,
    settings: options.Settings = None,
    track: options.Track = None,
    quiet: options.Quiet = False,
) -> None:
    """Compare methods on the same data and clients, or compare finished runs."""
    from potluck.cli.plan import check_plan
    from potluck.cli.progress import show_runs

    shown = column_list(columns, target)
    runs = _given_runs(what)
    if not runs:
        from potluck.runs.folder import run_folder
        from potluck.trackers import find_trackers

        find_trackers(track or ())
        with run_folder(out, "compare") as out:
            experiments = _experiments(what, flags, settings or [], options.parse_seeds(seeds), out)
            plan = check_plan(experiments, reference=reference, resume=resume, lenient=what == ["all"])
            if not quiet:
                print(*plan.sentences(), sep="\n", file=sys.stderr, flush=True)
            runs = _run_all(plan, out, resume=resume, track=track, quiet=quiet)
    show_runs(runs, report=out, tables=out, target=target, reference=reference, columns=shown)


def _given_runs(what: list[str]) -> list[Path]:
    """Return the run folders among the arguments; none if they are methods."""
    from potluck.methods import METHODS
    from potluck.runs.read import find_runs, is_run

    def is_place(name: str) -> bool:
        path = Path(name)
        return is_run(path) or (path.exists() and name not in METHODS and path.suffix != ".toml")

    method_names = [name for name in what if not is_place(name)]
    if method_names and len(method_names) < len(what):
        from potluck.core.errors import PotluckError

        raise PotluckError(
            f"{method_names[0]!r} is not a run folder; compare either methods or finished runs."
        )
    return [] if method_names else find_runs(what)


def column_list(text: str | None, target: float | None) -> list[str]:
    """Return the columns of a comma list; unknown ones raise before anything is trained."""
    from potluck.analysis.columns import check_columns
    from potluck.analysis.cost import check_target
    from potluck.experiment.sections import split_list

    if target is not None:
        check_target(target)
    names = split_list(text)
    check_columns(names, target)
    return names


def seed_list(text: str) -> list[int]:
    """Parse a comma-separated list of seeds and ranges of seeds."""
    return options.parse_seeds(text)


def _experiments(
    what: list[str], flags: options.Flags, settings: list[str], seeds: list[int], out: Path
) -> list[tuple[Experiment, Path]]:
    """Return every run of a comparison with its folder: the methods of the first seed, then of the next ones."""
    from potluck.experiment import merge_settings, read_target
    from potluck.experiment.differences import comparable_experiments
    from potluck.methods import METHODS

    names = list(METHODS) if what == ["all"] else what
    bases = {name: read_target(name) for name in names}
    by_method = _settings_by_method(bases, settings)
    pairs = [(name, seed) for seed in seeds for name in names]
    experiments = comparable_experiments(
        [
            merge_settings(copy.deepcopy(bases[name]), {**flags, "seed": seed}, by_method[name])
            for name, seed in pairs
        ]
    )
    stems = [experiment.method.name.split(":")[-1] for experiment in experiments[: len(names)]]
    runs = []
    for (name, seed), experiment in zip(pairs, experiments, strict=True):
        stem = experiment.method.name.split(":")[-1]
        if stems.count(stem) > 1 and name.endswith(".toml"):  # files of one method differ by their names
            stem = Path(name).stem
        runs.append((experiment, out / f"{stem}-seed{seed}"))
    return runs


def _settings_by_method(bases: dict[str, dict[str, Any]], settings: list[str]) -> dict[str, list[str]]:
    """Return the settings for each method: `method.NAME` applies to methods that have it, if any does."""
    from dataclasses import fields, is_dataclass

    from potluck.methods import method_class

    names: dict[str, set[str]] = {}
    for name, values in bases.items():
        cls = method_class(values.get("method", {}).get("name", "fedgh"))
        names[name] = {field.name for field in fields(cls)} if is_dataclass(cls) else set()

    def has(name: str, text: str) -> bool:
        section, _, key = text.partition("=")[0].strip().partition(".")
        return section != "method" or key in names[name] or not any(key in keys for keys in names.values())

    return {name: [text for text in settings if has(name, text)] for name in bases}


def _run_all(plan: Plan, out: Path, *, resume: bool, track: list[str] | None, quiet: bool) -> list[Path]:
    from potluck.api import execute
    from potluck.cli.progress import board

    try:
        with board([path.name for _, path in plan.runs], quiet=quiet) as show:
            for experiment, path in plan.runs:
                with show(path.name, experiment.schedule.rounds) as callbacks:
                    execute(
                        experiment,
                        out=path,
                        resume=resume,
                        callbacks=callbacks,
                        track=track or (),
                        command=command_line(),
                    )
    except BaseException as stopped:
        # Replaces the note of the interrupted run.
        stopped.__notes__ = [f"Continue with: {_resume_command(out)}"]
        raise
    return [path for _, path in plan.runs]


def _resume_command(out: Path) -> str:
    """Return the command that does the remaining runs of a comparison."""
    words = ["potluck", *sys.argv[1:]]
    placed = any(word.partition("=")[0] == "--out" for word in words)
    return shlex.join(
        [*words, *([] if placed else ["--out", str(out)]), *([] if "--resume" in words else ["--resume"])]
    )
