"""`potluck node`: take part in a federation with this machine's data and model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Take part in a federation with this machine's data and model.", no_args_is_help=True)

NodePath = Annotated[Path, typer.Argument(metavar="NODE.toml", help="the node's file")]


@app.command("init")
def init(
    path: NodePath = Path("node.toml"),
    name: Annotated[str, typer.Option("--name", help="unique in the federation")] = "node-1",
    model: Annotated[str, typer.Option("--model", help="a zoo name, or module:factory")] = "small-cnn",
    data: Annotated[str, typer.Option("--data", help="a data source, or module:function")] = "npz:rows.npz",
) -> None:
    """Write a commented node.toml and the node's key pair."""
    from potluck.core.errors import PotluckError
    from potluck.flower.deploy.keys import make_node_key
    from potluck.flower.node.config import TEMPLATE, read_node

    if path.exists():
        raise PotluckError(f"{str(path)!r} exists; edit it, or choose another name.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEMPLATE.format(name=name, model=model, source=data), encoding="utf-8")
    except OSError as error:
        raise PotluckError(
            f"{str(path)!r} cannot be written ({error.strerror}); choose another place."
        ) from None
    read_node(path)
    typer.echo(f"Wrote {path}. Edit it, then: potluck node check {path}")
    public = make_node_key(path.with_suffix(".key"), name)
    typer.echo(f"Give {public} to the operator of the server; keep {path.with_suffix('.key')} here.")


@app.command("check")
def check(
    path: NodePath = Path("node.toml"),
    experiment: Annotated[
        str, typer.Option("--experiment", help="a method's name or an experiment file, to check against")
    ] = "fedgh",
) -> None:
    """Load the data, build the model, check the method's needs and this node's policy, train one step."""
    from potluck.experiment import parse_experiment, read_target
    from potluck.flower.node.check import check_node

    for line in check_node(path, parse_experiment(read_target(experiment))):
        typer.echo(line)
    typer.echo(f"{path} is ready.")


@app.command("log")
def log(
    path: NodePath = Path("node.toml"),
    last: Annotated[int, typer.Option("--last", help="number of lines; 0: all", min=0)] = 20,
) -> None:
    """Print what has left this node and its privacy loss, and check that this record is unchanged."""
    from potluck.flower.node.audit_report import node_log

    for line in node_log(path, last):
        typer.echo(line)


@app.command("export")
def export(
    path: NodePath = Path("node.toml"),
    out: Annotated[Path, typer.Option("--out", help="folder of the exported model")] = Path("model"),
    run: Annotated[
        str | None, typer.Option("--run", help="a run's id, or its beginning; default: the latest")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="also write model.onnx")] = False,
) -> None:
    """Export this node's own trained model after a run; nothing passes through the server."""
    from potluck.flower.node.export import export_node
    from potluck.runs.predict import predict_command

    place = export_node(path, out, run=run, onnx=onnx)
    typer.echo(f"Model: {place}")
    command = predict_command(place)
    if (
        "--network" in command and path.resolve().parent != Path.cwd()
    ):  # its module lies beside the node's file
        typer.echo(f"Predict with, in {path.parent}: {command.replace(str(place), str(place.resolve()), 1)}")
    else:
        typer.echo(f"Predict with: {command}")


@app.command("start")
def start(
    server: Annotated[str, typer.Option("--server", help="HOST:PORT of the server")],
    path: NodePath = Path("node.toml"),
    ca: Annotated[Path | None, typer.Option("--ca", help="the server's ca.crt")] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="this node's key; default: NODE.key if it exists")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="no TLS: only on a network you trust")] = False,
) -> None:
    """Start the node; after a disconnect or a crash it restarts."""
    from potluck.core.errors import PotluckError
    from potluck.flower.deploy.serve import node_commands, supervise
    from potluck.flower.node.config import read_node

    if ca is None and not insecure:
        raise PotluckError("--ca is missing; pass the server's ca.crt, or --insecure on a network you trust.")
    file = read_node(path)
    default = path.with_suffix(".key")
    if key is None and ca is not None and default.exists():
        key = default
    supervise(file.state_folder() / "flower", node_commands(path, server, ca, key), typer.echo)
