"""`potluck compare`: one table, one picture, one significance test."""

from __future__ import annotations

import copy
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli import options

if TYPE_CHECKING:
    from potluck.cli.plan import Plan

Target = Annotated[
    float | None, typer.Option("--target", help="accuracy in (0, 1]: rounds, traffic, time to it")
]
Reference = Annotated[
    str | None, typer.Option("--reference", help="the method that others are tested against")
]

Columns = Annotated[
    str | None,
    typer.Option(
        "--columns", help="comma list of columns, such as accuracy,best,f1,ece,nll; else the usual ones"
    ),
]


def compare(
    what: Annotated[
        list[str], typer.Argument(metavar="METHOD…|RUN…", help="methods (or all), or run folders")
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
    device: options.Device = None,
    vectorize: options.Vectorize = None,
    fleet: options.Fleet = None,
    assign: options.Assign = None,
    seeds: Annotated[str, typer.Option("--seeds", help="comma list: each method runs once per seed")] = "0",
    target: Target = None,
    reference: Reference = None,
    columns: Columns = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for the runs, the tables and the report")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="keep finished runs in --out, do the rest")
    ] = False,
    settings: options.Settings = None,
    track: options.Track = None,
    quiet: options.Quiet = False,
) -> None:
    """Compare methods on the same data and clients, or runs that are finished already."""
    told = locals()
    from potluck.cli.display import show_runs

    shown = column_list(columns, target)
    runs = _given_runs(what)
    if not runs:
        from potluck.runs.folder import chosen_folder
        from potluck.trackers import find_trackers

        find_trackers(track or ())
        with chosen_folder(out, "compare") as out:
            plan = _plan(what, told, settings, seed_list(seeds), out, reference=reference, resume=resume)
            if not quiet:
                print(*plan.sentences(), sep="\n", file=sys.stderr, flush=True)
            runs = _run_all(plan, out, resume=resume, track=track, quiet=quiet)
    show_runs(runs, report=out, tables=out, target=target, reference=reference, columns=shown)


def _given_runs(what: list[str]) -> list[Path]:
    """The run folders that were named; none where methods were."""
    from potluck.methods import METHODS
    from potluck.runs.read import find_runs, is_run

    def is_place(name: str) -> bool:
        path = Path(name)
        return is_run(path) or (path.exists() and name not in METHODS and path.suffix != ".toml")

    others = [name for name in what if not is_place(name)]
    if others and len(others) < len(what):
        from potluck.core.errors import PotluckError

        raise PotluckError(f"{others[0]!r} is no run folder; compare either methods or finished runs.")
    return [] if others else find_runs(what)


def column_list(text: str | None, target: float | None) -> list[str]:
    """Names of columns from a comma list, if there are such: looked at before anything is trained."""
    from potluck.analysis.columns import check_columns
    from potluck.analysis.targets import check_target

    if target is not None:
        check_target(target)
    names = [name.strip() for name in text.split(",")] if text else []
    check_columns(names, target)
    return names


def seed_list(text: str) -> list[int]:
    """Whole numbers from a comma list."""
    from potluck.core.errors import PotluckError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise PotluckError(f"--seeds {text!r} is not a comma list of whole numbers, such as 0,1,2.") from None


def _plan(
    what: list[str],
    told: dict[str, Any],
    settings: list[str] | None,
    seeds: list[int],
    out: Path,
    *,
    reference: str | None,
    resume: bool,
) -> Plan:
    """Every run of the comparison, checked before the first one starts."""
    from potluck.cli.plan import check_plan
    from potluck.experiment import asked_values, base_values, flag_values
    from potluck.experiment.comparable import comparable

    flags = flag_values(told)
    wanted = [(name, seed) for seed in seeds for name in _names(what)]
    bases = {name: base_values(name) for name in _names(what)}
    theirs = _settings_by_method(bases, settings or [])
    experiments = comparable(
        [
            asked_values(copy.deepcopy(bases[name]), {**flags, "seed": seed}, theirs[name])
            for name, seed in wanted
        ]
    )
    stems = [experiment.method.name.split(":")[-1] for experiment in experiments[: len(_names(what))]]
    runs = []
    for (name, seed), experiment in zip(wanted, experiments, strict=True):
        stem = experiment.method.name.split(":")[-1]
        if stems.count(stem) > 1 and name.endswith(".toml"):  # files of one method, told apart by their names
            stem = Path(name).stem
        runs.append((experiment, out / f"{stem}-seed{seed}"))
    return check_plan(runs, reference=reference, resume=resume, lenient=what == ["all"])


def _settings_by_method(bases: dict[str, dict[str, Any]], settings: list[str]) -> dict[str, list[str]]:
    """A setting of a method goes to those that have it, if one of them does; all other settings go to everybody."""
    from dataclasses import fields, is_dataclass

    from potluck.methods import method_class

    known: dict[str, set[str]] = {}
    for name, values in bases.items():
        cls = method_class(values.get("method", {}).get("name", "fedgh"))
        known[name] = {field.name for field in fields(cls)} if is_dataclass(cls) else set()

    def has(name: str, text: str) -> bool:
        section, _, key = text.partition("=")[0].strip().partition(".")
        return section != "method" or key in known[name] or not any(key in keys for keys in known.values())

    return {name: [text for text in settings if has(name, text)] for name in bases}


def _run_all(plan: Plan, out: Path, *, resume: bool, track: list[str] | None, quiet: bool) -> list[Path]:
    from potluck.api import execute
    from potluck.cli.progress import board

    words = ["potluck", *sys.argv[1:]]
    command, names = shlex.join(words), [path.name for _, path in plan.runs]
    try:
        with board(names, quiet=quiet) as show:
            for experiment, path in plan.runs:
                with show(path.name) as watching:
                    execute(
                        experiment,
                        out=path,
                        resume=resume,
                        callbacks=watching,
                        track=track or (),
                        command=command,
                    )
    except BaseException as stopped:
        # The comparison goes on, not only the run it was at.
        stopped.__notes__ = [f"Go on with: {_again(words, out)}"]
        raise
    return [path for _, path in plan.runs]


def _again(words: list[str], out: Path) -> str:
    """The command that does the rest of a comparison."""
    placed = any(word.partition("=")[0] == "--out" for word in words)
    return shlex.join(
        [*words, *([] if placed else ["--out", str(out)]), *([] if "--resume" in words else ["--resume"])]
    )


def _names(what: list[str]) -> list[str]:
    from potluck.methods import METHODS

    return list(METHODS) if what == ["all"] else what
