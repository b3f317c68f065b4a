"""The `potluck` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from potluck.cli import (
    benchmark,
    clients,
    compare,
    lists,
    machine,
    node,
    options,
    push,
    reproduce,
    results,
    run,
    server,
    tune,
    worth,
)

app = typer.Typer(
    help="Federated classification where every client brings its own model.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(requested: bool) -> None:
    if requested:
        from potluck import __version__

        typer.echo(f"potluck {__version__}")
        raise typer.Exit


@app.callback()
def _command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Federated classification where every client brings its own model."""


COMMANDS: dict[str, Callable[..., None]] = {
    "run": run.run,
    "resume": run.resume,
    "compare": compare.compare,
    "report": results.report,
    "plot": results.plot,
    "watch": results.watch,
    "table": results.table,
    "export": results.export,
    "predict": results.predict,
    "push": push.push,
    "clean": results.clean,
    "leak": results.leak,
    "join": clients.join,
    "forget": clients.forget,
    "worth-it": worth.worth_it,
    "reproduce": reproduce.reproduce,
    "recipes": reproduce.recipes,
    "methods": lists.methods,
    "models": lists.models,
    "datasets": lists.datasets,
    "new": machine.new,
    "settings": lists.settings,
    "tune": tune.tune,
    "benchmark": benchmark.benchmark,
    "doctor": machine.doctor,
}


def expand_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `flags` of a command by the flags that `options.with_flags` declares."""
    names: tuple[str, ...] = getattr(command, "setting_flags", ())
    if not names:
        return command

    def run(**arguments: Any) -> None:
        command(flags={name: arguments.pop(name) for name in names}, **arguments)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name == "flags":
            parameters += [
                inspect.Parameter(name, keyword, default=None, annotation=options.SETTING_FLAGS[name])
                for name in names
            ]
        else:
            parameters.append(parameter.replace(kind=keyword))
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = command.__doc__
    return run


for _name, _function in COMMANDS.items():
    app.command(_name)(expand_flags(_function))
app.add_typer(machine.data_app, name="data")
app.add_typer(node.app, name="node")
app.add_typer(server.app, name="server")


def main() -> None:
    """Run the command. User errors print one sentence and exit with code 2."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: finds module:Class here without shadowing other modules
    try:
        app()
    except (KeyboardInterrupt, SystemExit) as interruption:
        stopped = _find_interrupt(interruption)
        if stopped is None:
            raise
        notes = getattr(stopped, "__notes__", ())
        print("Stopped. Everything written so far is kept.", *notes, sep="\n", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not _is_user_error(error):
            raise
        print(f"Error: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        sys.exit(2)


def _find_interrupt(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the KeyboardInterrupt behind an exit; typer replaces it by an exit code."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def _is_user_error(error: Exception) -> bool:
    from potluck.core.errors import PotluckError

    return isinstance(error, PotluckError)
