"""`potluck data`: prepare a data set, or see how it is dealt to clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potluck.cli import options

app = typer.Typer(help="Prepare data, or show how it is dealt to clients.", no_args_is_help=True)


@app.command("prepare")
def prepare(
    name: Annotated[str, typer.Argument(help="a data set")], data_root: options.DataRoot = None
) -> None:
    """Fetch and verify a data set, or say exactly which files to put where."""
    from potluck.data import prepare as prepare_data

    typer.echo(prepare_data(name, data_root, typer.echo))


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="a data set")] = "digits",
    data_root: options.DataRoot = None,
    partition: options.Partition = None,
    clients: options.Clients = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="bubble plot: .png or .svg")] = None,
) -> None:
    """Print how many samples of each class each client gets, and draw the bubble plot."""
    from potluck.data import bubble_plot, load_data, parse_partition, sizes_table
    from potluck.data import partition as deal
    from potluck.experiment.sections import PartitionSettings

    usual = PartitionSettings()
    data = load_data(name, data_root).merged()
    rule = parse_partition(partition or usual.rule)
    dealt = deal(data, rule, clients or usual.clients, seed)
    typer.echo(repr(data))
    typer.echo(sizes_table(dealt.counts, data.class_names))
    if out is not None:
        typer.echo(f"Bubble plot: {bubble_plot(dealt.counts, out)}")
