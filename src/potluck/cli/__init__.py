"""The `potluck` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from potluck.cli import (
    bench,
    benchmark,
    compare,
    doctor,
    leak,
    lists,
    new,
    node,
    reproduce,
    results,
    resume,
    run,
    server,
    settings,
    table,
    tune,
    watch,
)
from potluck.cli import data as data_commands

app = typer.Typer(
    help="Federated learning where everyone brings their own model.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from potluck import __version__

        typer.echo(f"potluck {__version__}")
        raise typer.Exit


@app.callback()
def _command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    """Federated learning where everyone brings their own model."""


app.command("run")(run.run)
app.command("resume")(resume.resume)
app.command("compare")(compare.compare)
app.command("report")(results.report)
app.command("plot")(results.plot)
app.command("watch")(watch.watch)
app.command("table")(table.table)
app.command("export")(results.export)
app.command("leak")(leak.leak)
app.command("reproduce")(reproduce.reproduce)
app.command("recipes")(reproduce.recipes)
app.command("methods")(lists.methods)
app.command("models")(lists.models)
app.command("datasets")(lists.datasets)
app.command("new")(new.new)
app.command("settings")(settings.settings)
app.command("tune")(tune.tune)
app.command("benchmark")(benchmark.benchmark)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.add_typer(data_commands.app, name="data")
app.add_typer(node.app, name="node")
app.add_typer(server.app, name="server")


def main() -> None:
    """Run the command; what a user can mend is one sentence and exit code 2."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that module:Class is found here and nothing is shadowed
    try:
        app()
    except (KeyboardInterrupt, SystemExit) as ended:
        stopped = _interruption(ended)
        if stopped is None:
            raise
        notes = getattr(stopped, "__notes__", ())
        print("Stopped. Nothing that was written is lost.", *notes, sep="\n", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not _is_for_users(error):
            raise
        print(f"Error: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        sys.exit(2)


def _interruption(error: BaseException | None) -> KeyboardInterrupt | None:
    """The Ctrl-C behind an exit: typer turns it into a bare exit code before we see it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def _is_for_users(error: Exception) -> bool:
    from potluck.core.errors import PotluckError

    return isinstance(error, PotluckError)
