"""`potluck methods | models | datasets`: what there is, one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str | None, typer.Argument(help="show one in full")]


def methods(
    name: Name = None,
    that_fit: Annotated[
        Path | None,
        typer.Option(
            "--that-fit",
            metavar="FILE.toml",
            help="which of them this federation can run, and why not the others",
        ),
    ] = None,
) -> None:
    """List the methods, show one's options, needs and what travels, or say which a federation can run."""
    if that_fit is not None:
        _show_fitting(name, that_fit)
    elif name is not None:
        _show_method(name)
    else:
        _show("methods", 12)


def _show(kind: str, width: int) -> None:
    from potluck.cli.catalogue import catalogue

    for name, about in catalogue()[kind].items():
        typer.echo(f"{name:{width}}  {about}")


def _show_fitting(name: str | None, file: Path) -> None:
    from potluck.cli.catalogue import catalogue
    from potluck.core.errors import PotluckError
    from potluck.experiment import parse_experiment, read_experiment
    from potluck.runs.fitting import fitting

    if name is not None:
        raise PotluckError(f"--that-fit looks at all methods; leave {name!r} out.")
    found = fitting(parse_experiment(read_experiment(file)))
    typer.echo(f"{found.federation}\n\nCan run:")
    for each, remark in found.fit.items():
        typer.echo(f"  {each:12}  {catalogue()['methods'][each]}{f' ({remark})' if remark else ''}")
    typer.echo("\nCannot:" if found.unfit else "\nThere is none that cannot.")
    for each, reason in found.unfit.items():
        typer.echo(f"  {each:12}  {reason}")


def _show_method(name: str) -> None:
    from potluck.core.method import payload_types
    from potluck.core.payload import field_kinds
    from potluck.core.settings import settings_of
    from potluck.experiment.experiment import make_method
    from potluck.methods import method_class

    cls = method_class(name)
    method = make_method(cls, {})
    typer.echo(f"{name}: {cls.summary}\n")
    typer.echo(f"{(cls.__doc__ or '').strip()}\n")
    typer.echo(f"Needs: {', '.join(sorted(method.requires()))}")
    typer.echo(f"Own mode: {'asynchronous' if cls.asynchronous else 'synchronous'}\n")
    typer.echo("What travels:")
    for arrow, payload in zip(("down", "up"), payload_types(method), strict=True):
        fields = ", ".join(field_kinds(payload)) or "nothing"
        typer.echo(f"  {arrow:4}  {payload.__name__} ({fields}): {_first_line(payload.__doc__)}")
    typer.echo("\nSettings (--set method.NAME=VALUE):")
    for each in settings_of(cls):
        typer.echo(f"  {each.name:20} {each.default!r:12} {each.kind}\n      {each.meaning}")
    if not list(settings_of(cls)):
        typer.echo("  none")


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0] if text else ""


def models(
    name: Name = None,
    shape: Annotated[
        str | None,
        typer.Option("--shape", help="input shape, such as 3x32x32; default: one that suits the model"),
    ] = None,
    classes: Annotated[int, typer.Option("--classes", help="number of classes")] = 10,
    vocabulary: Annotated[int, typer.Option("--vocabulary", help="different words, for text models")] = 10000,
) -> None:
    """List models and groups, or show one model's layers, size, FLOPs and speed here."""
    if name is not None:
        _show_model(name, shape, classes, vocabulary)
        return
    _show("models", 20)
    typer.echo("\nGroups:")
    _show("groups", 20)


def _show_model(name: str, shape: str | None, classes: int, vocabulary: int) -> None:
    from potluck.core.random import one_thread
    from potluck.models import describe, example_shape, measure_speed, resolve_models

    for each in resolve_models(name):
        sizes = _sizes(shape) if shape else example_shape(each)
        typer.echo(str(describe(each, sizes, classes, vocabulary=vocabulary)))
        with one_thread():
            speed = measure_speed(each, sizes, classes, vocabulary=vocabulary)
        typer.echo(f"Training speed here, one thread: {speed:,.0f} samples per second\n")


def _sizes(text: str) -> tuple[int, ...]:
    from potluck.core.errors import PotluckError

    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise PotluckError(f"--shape {text!r} is not understood; write sizes such as 3x32x32.") from None


def datasets() -> None:
    """List the data sets."""
    _show("datasets", 16)
