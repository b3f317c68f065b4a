"""`potluck methods | models | datasets`: what there is, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from potluck.models.card import ModelCard

Name = Annotated[str | None, typer.Argument(help="show one in full")]


def methods(name: Name = None) -> None:
    """List the methods, or show one's options, needs and what travels."""
    from potluck.methods import METHODS, method_class

    if name is None:
        for each in METHODS:
            typer.echo(f"{each:12}  {method_class(each).summary}")
        return
    _show_method(name)


def _show_method(name: str) -> None:
    from potluck.core.method import payload_types
    from potluck.core.payload import field_kinds
    from potluck.experiment import make_method, method_options
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
    typer.echo("\nOptions (--set method.NAME=VALUE):")
    for option, kind, default in method_options(cls):
        typer.echo(f"  {option:20} {default!r:12} {kind}")
    if not method_options(cls):
        typer.echo("  none")


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0] if text else ""


def models(
    name: Name = None,
    shape: Annotated[str, typer.Option("--shape", help="input shape, such as 3x32x32")] = "3x32x32",
    classes: Annotated[int, typer.Option("--classes", help="number of classes")] = 10,
) -> None:
    """List models and groups, or show one model's layers, size, FLOPs and speed here."""
    from potluck.models import groups, model_names, model_summary

    if name is not None:
        _show_model(name, shape, classes)
        return
    for each in model_names():
        typer.echo(f"{each:20}  {model_summary(each)}")
    typer.echo("\nGroups:")
    for group, members in groups.items():
        typer.echo(f"{group:20}  {', '.join(members)}")


def _show_model(name: str, shape: str, classes: int) -> None:
    from potluck.core.errors import PotluckError
    from potluck.core.threads import one_thread
    from potluck.models import groups
    from potluck.models.card import describe, measure_speed

    try:
        sizes = tuple(int(part) for part in shape.lower().split("x"))
    except ValueError:
        raise PotluckError(f"--shape {shape!r} is not understood; write sizes such as 3x32x32.") from None
    for each in groups.get(name, (name,)):
        _print_card(describe(each, sizes, classes))
        with one_thread():
            speed = measure_speed(each, sizes, classes)
        typer.echo(f"Training speed here, one thread: {speed:,.0f} samples per second\n")


def _print_card(card: ModelCard) -> None:
    shape = "×".join(map(str, card.input_shape))
    typer.echo(f"{card.name}: {card.summary}\n")
    for layer in card.layers:
        output = "×".join(map(str, layer.output_shape))
        typer.echo(f"  {layer.name:28} {layer.type:20} {output:>14} {layer.parameters:>12,}")
    typer.echo(f"\nInput {shape}, {card.num_classes} classes, {card.feature_dim} features")
    typer.echo(f"Parameters: {card.parameters:,} (and {card.buffers:,} buffer values), {card.mib:.2f} MiB")
    typer.echo(f"FLOPs per sample, forward: {card.flops:,}")


def datasets() -> None:
    """List the data sets."""
    from potluck.data import list_data

    for source in list_data():
        typer.echo(f"{source.name:16}  {source.about}")
