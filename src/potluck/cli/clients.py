"""`potluck join`: clients that come after a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from potluck.runs.join import Joined

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run")]


def join(
    run: RunFolder,
    data: Annotated[
        str, typer.Option("--data", help="the new client's rows: csv:PATH, folder:PATH, npz:PATH, …")
    ],
    model: Annotated[str, typer.Option("--model", help="a model of the run, or of `potluck models`")],
    name: Annotated[str, typer.Option("--name", help="the new client's name")] = "newcomer",
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="default: as many as a client of the run trained")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="train:validation:test")] = "6:2:2",
    label: Annotated[str | None, typer.Option("--label", help="the column with the classes")] = None,
    safeguard: Annotated[
        str, typer.Option("--safeguard", help="select: keep the better model; ensemble: mix both")
    ] = "select",
    out: Annotated[Path | None, typer.Option("--out", help="folder; default: RUN/join/NAME")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="also write model.onnx")] = False,
) -> None:
    """Join a run as a new client: train with its message and alone, keep and export what validation supports."""
    from typing import cast

    from potluck.runs.join import join_run
    from potluck.worker.safeguard import Mode

    joined = join_run(
        run, data, model, name=name, epochs=epochs, split=split, label=label,
        safeguard=cast("Mode", safeguard), out=out, onnx=onnx,
    )  # fmt: skip
    _show_joined(joined)


def _show_joined(joined: Joined) -> None:
    from rich.console import Console
    from rich.table import Table

    typer.echo(
        f"{joined.name}: {joined.architecture}, {joined.train} training samples, {joined.epochs} epochs; the message "
        f"of round {joined.round} has {joined.message_bytes:,} bytes"
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("", "samples", "alone %", "federated %", "used %"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = [("validation", joined.validation, joined.accuracy_validation)]
    if joined.accuracy is not None:
        rows.append(("test", joined.test, joined.accuracy))
    for part, samples, (used, federated, alone) in rows:
        table.add_row(part, str(samples), *(f"{100 * value:.1f}" for value in (alone, federated, used)))
    Console().print(table)
    chosen = {0.0: "its standalone model", 1.0: "its federated model"}.get(
        joined.weight, f"both models, {joined.weight:.0%} federated"
    )
    typer.echo(
        f"It uses {chosen}: on validation samples only the federated model is right on {joined.validation_gained}, "
        f"only the standalone model on {joined.validation_lost}."
    )
    typer.echo(f"Model: {joined.path}")
