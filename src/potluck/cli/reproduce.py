"""`potluck recipes` and `potluck reproduce`: a paper's table beside what was measured."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli import options
from potluck.cli.compare import seed_list

if TYPE_CHECKING:
    from potluck.recipes.reproduce import Ended, Reproduction

STEM = "reproduction"


def recipes(name: Annotated[str | None, typer.Argument(help="show one in full")] = None) -> None:
    """List the papers' tables that can be reproduced, or show one: settings, printed numbers, notes."""
    from potluck.recipes.recipe import find_recipe, recipe_names

    if name is None:
        for each in recipe_names():
            typer.echo(f"{each:20}  {find_recipe(each).title}")
        return
    from rich.console import Console

    from potluck.recipes.tables import column_lines, print_blocks, printed_blocks, setting_lines

    recipe = find_recipe(name)
    typer.echo("\n".join([recipe.title, recipe.paper, "", *setting_lines(recipe), "", "As printed:"]))
    print_blocks(list(recipe.rows), printed_blocks(recipe), Console())
    typer.echo("\n".join([*column_lines(recipe, list(recipe.columns)), "", "Notes:", *recipe.notes]))


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE.toml", help="see potluck recipes")],
    scale: Annotated[str, typer.Option("--scale", help="smoke | small | paper")] = "small",
    rows: Annotated[str | None, typer.Option("--rows", help="comma list of methods; else all")] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="comma list of columns; else all")] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="comma list: each cell is run once per seed")] = "0",
    data_root: options.DataRoot = None,
    engine: options.Engine = None,
    workers: options.Workers = None,
    memory: options.Memory = None,
    device: options.Device = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for everything; else one in runs/")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="keep finished runs in --out")] = False,
    store: Annotated[
        Path | None, typer.Option("--store", help="add each measured cell to this CSV file")
    ] = None,
    settings: options.Settings = None,
    quiet: options.Quiet = False,
) -> None:
    """Run a paper's table again and show its numbers beside the measured ones."""
    told = locals()
    from potluck.experiment import asked_values, flag_values
    from potluck.recipes.recipe import find_recipe
    from potluck.recipes.reproduce import check_data, plan
    from potluck.recipes.scale import check_scale
    from potluck.runs.folder import chosen_folder

    flags = flag_values(told)

    def change(values: dict[str, Any]) -> dict[str, Any]:
        return asked_values(values, flags, settings)

    table = plan(
        find_recipe(name),
        check_scale(scale),
        seeds=seed_list(seeds),
        rows=_words(rows),
        columns=_words(columns),
        change=change,
    )
    check_data(table)
    ended = _storing(table, store, settings or [])
    with chosen_folder(out, f"{table.recipe.name}-{table.scale}") as place:
        _check_folder(table, place, settings or [], resume=resume)
        _go(table, place, settings or [], ended, quiet=quiet)
    _show(table, place)
    if table.failures:
        raise typer.Exit(1)


def _go(table: Reproduction, place: Path, settings: list[str], ended: Ended, *, quiet: bool) -> None:
    from potluck.cli.progress import board
    from potluck.recipes.reproduce import labels, run_all

    command = shlex.join(["potluck", *sys.argv[1:]])
    keep = partial(_write, out=place, command=command, settings=settings)
    with board(labels(table), quiet=quiet) as show:
        keep(table)
        run_all(table, place, watch=show, keep=keep, ended=ended, command=command)


def _storing(table: Reproduction, store: Path | None, settings: list[str]) -> Ended:
    """What to do with every run that ended; a file that is something else is refused before anything is trained."""
    from potluck.core.errors import PotluckError
    from potluck.recipes.reproduce import tell_nobody
    from potluck.recipes.store import add_cells, cells_of, read_cells

    if store is None:
        return tell_nobody
    if settings:
        raise PotluckError(
            f"--store keeps what recipes say, and --set {settings[0]} changes it; leave one of them out, or write the "
            "change into a recipe of your own."
        )
    read_cells(store)
    return lambda key, run, core_seconds: add_cells(store, cells_of(table, key, run, core_seconds))


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",")] if text else []


def _check_folder(table: Reproduction, out: Path, settings: list[str], *, resume: bool) -> None:
    """A folder holds one recipe at one scale with one set of changes; going on with it is asked for."""
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
        there = old["recipe"], old["scale"], old["set"]
    except (ValueError, KeyError, TypeError):
        raise PotluckError(f"{str(file)!r} cannot be read; delete it and try again.") from None
    if there != (table.recipe.name, table.scale, settings):
        changed = "".join(f" --set {text}" for text in there[2])
        raise PotluckError(
            f"--out {str(out)!r} holds {there[0]} at scale {there[1]}{changed}; choose another folder."
        )


def _write(table: Reproduction, out: Path, command: str, settings: list[str]) -> None:
    """The table in three forms, renewed after every run: a stopped reproduction can be read."""
    from potluck.recipes.tables import to_csv, to_json, to_markdown
    from potluck.runs.folder import write_files

    forms = {"md": to_markdown(table, command), "csv": to_csv(table), "json": to_json(table, settings)}
    write_files(out, {f"{STEM}.{suffix}": text for suffix, text in forms.items()})


def _show(table: Reproduction, out: Path) -> None:
    from rich.console import Console
    from rich.text import Text

    from potluck.recipes.reproduce import run_path
    from potluck.recipes.tables import LEGEND, blocks, failure_lines, print_blocks, scale_lines
    from potluck.report.html import write_report
    from potluck.runs.folder import REPORT

    console = Console()
    console.print(Text(table.recipe.title, style="bold"))
    print_blocks(list(table.rows), blocks(table), console)
    for line in (*scale_lines(table), LEGEND, *failure_lines(table)):
        console.print(Text(line, style="dim" if line == LEGEND else ""))
    console.print(f"Tables: {out}/{STEM}.md, .csv, .json", highlight=False, soft_wrap=True)
    finished = [run_path(out, key) for key in table.work if key in table.values]
    if finished:
        page = write_report(finished, out / REPORT)
        console.print(f"Report: {page}", highlight=False, soft_wrap=True)
