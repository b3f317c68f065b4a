"""`potluck join | forget`: clients that come after a run, and clients that leave it."""

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


def forget(
    run: RunFolder,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="the client's number, from 0, or its name")],
    last: Annotated[bool, typer.Option("--last", help="remove only its last contribution")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder of the copy; default: RUN-without-CLIENT")
    ] = None,
) -> None:
    """Copy a run with a server state that a client's contributions never entered; say what only retraining removes."""
    from potluck.runs.folder import FORGOTTEN
    from potluck.runs.forget import forget_client
    from potluck.runs.read import read_run

    number = int(client) if client.isdecimal() else read_run(run).client_number(client)
    result = forget_client(run, number, last=last, out=out)
    rounds = "round" if len(result.removed) == 1 else "rounds"
    typer.echo(
        f"Removed from the server's state: {result.name}'s contributions of {rounds} "
        f"{', '.join(map(str, result.removed))} ({result.how})."
    )
    equality = "bit by bit" if result.how == "replayed" else "up to rounding"
    if result.complete:
        typer.echo(f"The state is {equality} that of a run that never had them.")
    else:
        typer.echo(
            f"Given the other clients' answers, the state is {equality} that of a run that never had them; but "
            f"{result.learned} of these answers were computed after their clients had received something of it."
        )
    if result.received:
        typer.echo(
            f"The models of {len(result.received)} other clients were trained with messages that held something of it. "
            "Only retraining removes that:"
        )
        typer.echo(result.retrain)
    typer.echo(f"Run folder: {result.path} ({FORGOTTEN})")
