"""`potluck recipes` and `potluck reproduce`: a paper's table or figure beside what was measured."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli import options
from potluck.cli.compare import seed_list

if TYPE_CHECKING:
    from rich.console import Console

    from potluck.recipes.budget import Budget
    from potluck.recipes.reproduce import OnRunEnd, Reproduction

STEM = "reproduction"


def recipes(name: Annotated[str | None, typer.Argument(help="show one in full")] = None) -> None:
    """List the papers' tables and figures that can be reproduced, or show one: settings, printed numbers, notes."""
    from potluck.recipes.recipe import find_recipe, recipe_names

    if name is None:
        for each in recipe_names():
            typer.echo(f"{each:20}  {find_recipe(each).title}")
        return
    from rich.console import Console

    from potluck.recipes.tables import column_lines, panel_lines, print_blocks, printed_blocks, setting_lines

    recipe = find_recipe(name)
    lines = [recipe.title, recipe.paper, "", *setting_lines(recipe), *panel_lines(recipe), "", "As printed:"]
    typer.echo("\n".join(lines))
    print_blocks(list(recipe.rows), printed_blocks(recipe), Console())
    typer.echo("\n".join([*column_lines(recipe, list(recipe.columns)), "", "Notes:", *recipe.notes]))


Name = Annotated[str, typer.Argument(metavar="NAME|FILE.toml", help="see potluck recipes")]
Scale = Annotated[str, typer.Option("--scale", help="smoke | small | full | paper")]
RoundsShare = Annotated[
    float | None,
    typer.Option("--rounds-share", help="full: share of the paper's rounds; else what the recipe says"),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--budget", help="stop after this time, such as 6h; continue with --resume (full: always so)"
    ),
]
Estimate = Annotated[
    bool, typer.Option("--estimate", help="measure what each run will cost, show their order, train nothing")
]
Rows = Annotated[str | None, typer.Option("--rows", help="comma list of methods; else all")]
Columns = Annotated[str | None, typer.Option("--columns", help="comma list of columns; else all")]
Seeds = Annotated[str, typer.Option("--seeds", help="comma list: each cell is run once per seed")]
Out = Annotated[Path | None, typer.Option("--out", help="folder for everything; else one in runs/")]
Resume = Annotated[
    bool, typer.Option("--resume", help="continue what --out holds; at --scale full always so")
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store", help="add each measured cell to this CSV file; with --estimate, what is still to do"
    ),
]


def reproduce(
    name: Name,
    scale: Scale = "small",
    rounds_share: RoundsShare = None,
    rows: Rows = None,
    columns: Columns = None,
    seeds: Seeds = "0",
    budget: TimeLimit = None,
    estimate: Estimate = False,
    data_root: options.DataRoot = None,
    engine: options.Engine = None,
    workers: options.Workers = None,
    memory: options.Memory = None,
    device: options.Device = None,
    out: Out = None,
    resume: Resume = False,
    store: Store = None,
    settings: options.Settings = None,
    quiet: options.Quiet = False,
) -> None:
    """Run a paper's table or figure again and show its numbers beside the measured ones."""
    from potluck.recipes.budget import Budget, parse_budget
    from potluck.recipes.reproduce import check_data
    from potluck.runs.folder import run_folder

    flags = {"data_root": data_root, "engine": engine, "workers": workers, "memory": memory, "device": device}
    table = _table(
        name, scale, rounds_share, rows=rows, columns=columns, seeds=seeds, flags=flags, settings=settings
    )
    limit = None if budget is None else Budget(parse_budget(budget))
    check_data(table)
    place, going_on = _place(table, out), resume or table.scale == "full"
    if estimate:
        _estimate(table, place, store, budget, quiet=quiet)
        return
    store_run = _storing(table, store, settings or [])
    with run_folder(place, f"{table.recipe.name}-{table.scale}") as folder:
        _check_folder(table, folder, settings or [], resume=going_on)
        completed = _go(table, folder, settings or [], store_run, limit, quiet=quiet)
    problems = _show(table, folder)
    if not completed:
        finished = sum(key in table.values for key in table.work)
        command = _again(None if place else folder, resume=going_on)
        typer.echo(
            f"The budget of {budget} is spent: {finished} of {len(table.work)} runs are done; continue with: {command}"
        )
    if table.failures or (problems and completed):
        raise typer.Exit(1)


def _table(
    name: str,
    scale_name: str,
    rounds_share: float | None,
    *,
    rows: str | None,
    columns: str | None,
    seeds: str,
    flags: Mapping[str, Any],
    settings: Sequence[str] | None,
) -> Reproduction:
    """Return the work that the flags ask for; at the full scale in the order of interest."""
    from potluck.experiment import merge_settings
    from potluck.recipes.order import informative_order
    from potluck.recipes.recipe import find_recipe
    from potluck.recipes.reproduce import plan
    from potluck.recipes.scale import check_rounds_share, check_scale

    scale = check_scale(scale_name)

    def change(values: dict[str, Any]) -> dict[str, Any]:
        return merge_settings(values, flags, settings)

    table = plan(
        find_recipe(name),
        scale,
        seeds=seed_list(seeds),
        rows=_words(rows),
        columns=_words(columns),
        change=change,
        rounds_share=check_rounds_share(rounds_share, scale),
    )
    if scale == "full":
        table.work = {key: table.work[key] for key in informative_order(table)}
    return table


def _place(table: Reproduction, out: Path | None) -> Path | None:
    """Return the folder that was asked for; at the full scale else always the same one, so that a command continues."""
    from potluck.recipes.recipe import slug
    from potluck.runs.folder import RUNS

    return out or (RUNS / f"{slug(table.recipe.name)}-full" if table.scale == "full" else None)


def _estimate(
    table: Reproduction, place: Path | None, store: Path | None, budget: str | None, *, quiet: bool
) -> None:
    from potluck.cli.estimate import show_estimate
    from potluck.core.errors import PotluckError
    from potluck.recipes.budget import parse_budget
    from potluck.recipes.store import add_estimate, read_cells, take_stored_values

    if table.recipe.counted:
        raise PotluckError(
            f"--estimate has no effect on {table.recipe.name!r}, which is counted in a minute; leave it out."
        )
    if store is not None:
        take_stored_values(table, read_cells(store))
    total = show_estimate(table, place, None if budget is None else parse_budget(budget), quiet=quiet)
    if store is not None:
        command = shlex.join(["potluck", *(word for word in sys.argv[1:] if word != "--estimate")])
        add_estimate(store, {**total._asdict(), "command": command})


def _again(out: Path | None, *, resume: bool) -> str:
    """Return the command that continues a stopped reproduction; `out` is its folder if the command named none."""
    more = [*([] if out is None else ["--out", str(out)]), *([] if resume else ["--resume"])]
    return shlex.join(["potluck", *sys.argv[1:], *more])


def _go(
    table: Reproduction,
    place: Path,
    settings: list[str],
    ended: OnRunEnd,
    budget: Budget | None,
    *,
    quiet: bool,
) -> bool:
    """Run everything; False where the budget was spent first."""
    from potluck.cli.progress import board
    from potluck.recipes.reproduce import run_all, run_labels

    command = shlex.join(["potluck", *sys.argv[1:]])
    keep = partial(_write, out=place, command=command, settings=settings)
    with board(run_labels(table), quiet=quiet) as show:
        keep(table)
        return run_all(table, place, watch=show, keep=keep, ended=ended, command=command, budget=budget)


def _storing(table: Reproduction, store: Path | None, settings: list[str]) -> OnRunEnd:
    """Return the action for every run that ended; a file of another kind is rejected before training."""
    from potluck.core.errors import PotluckError
    from potluck.recipes.reproduce import Key, ignore_run
    from potluck.recipes.store import (
        add_cells,
        cells_from_run,
        check_full_commit,
        curves_from_run,
        read_cells,
        take_stored_values,
    )
    from potluck.runs.run import Run
    from potluck.runs.writer import provenance

    if store is None:
        return ignore_run
    if settings:
        raise PotluckError(
            f"--store keeps what recipes say, and --set {settings[0]} changes it; leave one of them out, or write the "
            "change into a recipe of your own."
        )
    stored = read_cells(store)
    if table.scale == "full":
        check_full_commit(str(provenance().get("commit", "")))
        take_stored_values(table, stored)

    def keep(key: Key, run: Run, core_seconds: float | None) -> None:
        add_cells(store, cells_from_run(table, key, run, core_seconds), curves_from_run(table, key, run))

    return keep


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",")] if text else []


def _check_folder(table: Reproduction, out: Path, settings: list[str], *, resume: bool) -> None:
    """Check that the folder holds the same recipe, scale and changes, and that continuing was asked for."""
    from potluck.core.errors import PotluckError
    from potluck.core.files import parse_json, read_text

    file = out / f"{STEM}.json"
    if not file.exists():
        return
    if not resume:
        raise PotluckError(
            f"--out {str(out)!r} already holds a reproduction; pass --resume to go on with it, "
            f"or choose another folder."
        )
    try:
        old = parse_json(read_text(file))
        stored = old["recipe"], old["scale"], old["set"]
    except (ValueError, KeyError, TypeError):
        raise PotluckError(f"{str(file)!r} cannot be read; delete it and try again.") from None
    if stored != (table.recipe.name, table.scale, settings):
        changed = "".join(f" --set {text}" for text in stored[2])
        raise PotluckError(
            f"--out {str(out)!r} holds {stored[0]} at scale {stored[1]}{changed}; choose another folder."
        )


def _write(table: Reproduction, out: Path, command: str, settings: list[str]) -> None:
    """Write the table in three forms after every run, so that a stopped reproduction can be read."""
    from potluck.recipes.tables import to_csv, to_json, to_markdown
    from potluck.runs.folder import write_files

    forms = {"md": to_markdown(table, command), "csv": to_csv(table), "json": to_json(table, settings)}
    write_files(out, {f"{STEM}.{suffix}": text for suffix, text in forms.items()})


def _show(table: Reproduction, out: Path) -> list[str]:
    """Print the tables, draw the figure and write the report; returns what of the figure cannot be shown."""
    from rich.console import Console
    from rich.text import Text

    from potluck.recipes.reproduce import run_path
    from potluck.recipes.tables import (
        LEGEND,
        blocks,
        failure_lines,
        mechanism_lines,
        print_blocks,
        scale_lines,
    )
    from potluck.report.html import write_report
    from potluck.runs.folder import REPORT, SUMMARY

    console = Console()
    console.print(Text(table.recipe.title, style="bold"))
    print_blocks(list(table.rows), blocks(table), console)
    for line in (*scale_lines(table), LEGEND, *mechanism_lines(table), *failure_lines(table)):
        console.print(Text(line, style="dim" if line == LEGEND else ""))
    console.print(f"Tables: {out}/{STEM}.md, .csv, .json", highlight=False, soft_wrap=True)
    problems = _draw(table, out, console)
    paths = [run_path(out, key) for key in table.work if key in table.values]
    finished = [path for path in paths if (path / SUMMARY).exists()]  # others are known from --store alone
    if finished:
        page = write_report(finished, out / REPORT, pictures=_pictures(table, out))
        console.print(f"Report: {page}", highlight=False, soft_wrap=True)
    return problems


def _draw(table: Reproduction, out: Path, console: Console) -> list[str]:
    from potluck.recipes import draw

    if table.recipe.figure is None:
        return []
    figures = draw.write_figure(table, out)
    for sentence in (*figures.empty, *figures.problems):
        console.print(sentence, highlight=False, soft_wrap=True)
    if figures.points:
        console.print(f"Figure: {out}/{draw.STEM}.pdf, .png; its data: .csv", highlight=False, soft_wrap=True)
    return figures.problems


def _pictures(table: Reproduction, out: Path) -> dict[str, Path]:
    """The figure for the report, by its caption."""
    from potluck.recipes import draw

    picture = out / f"{draw.STEM}.png"
    if table.recipe.figure is None or not picture.exists():
        return {}
    return {f"{table.recipe.title}. The data are in {draw.STEM}.csv.": picture}
