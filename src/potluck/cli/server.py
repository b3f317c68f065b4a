"""`potluck server`: the meeting place of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="The meeting place of a federation.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--folder", help="certificates, state and logs")]


@app.command("keys")
def keys(
    public_keys: Annotated[
        list[Path] | None, typer.Argument(metavar="NODE.key.pub…", help="public keys of nodes to let in")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="a name or address by which nodes reach this machine")
    ] = None,
    folder: Folder = Path("potluck-server"),
    server: Annotated[
        str, typer.Option("--server", help="the running server, as it says when it starts")
    ] = "127.0.0.1:8000",
    name: Annotated[str, typer.Option("--name", help="the node's name; else the one in its key file")] = "",
) -> None:
    """Make the server's certificates once; register nodes' public keys with the running server."""
    from potluck.flower.deploy.keys import CA, make_certificates, name_of

    if not (folder / CA).exists():
        make_certificates(folder, [*(host or []), "localhost", "127.0.0.1"])
        typer.echo(f"Wrote certificates to {folder}. Give {folder / CA} to every node.")
    if public_keys:
        from potluck.core.errors import PotluckError
        from potluck.flower.deploy.submit import register

        if name and len(public_keys) > 1:
            raise PotluckError(
                f"--name {name!r} can be the name of one key; register the others by themselves."
            )
        for path in public_keys:
            known = name or name_of(path)
            register(path, known, server, folder / CA)
            typer.echo(f"Registered {path} as {known}; no other key can take this name.")


@app.command("start")
def start(
    folder: Folder = Path("potluck-server"),
    host: Annotated[str, typer.Option("--host", help="the interface to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port")] = 8000,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="no TLS, no node keys: only on a network you trust")
    ] = False,
    control_port: Annotated[
        int,
        typer.Option(
            "--control-port", help="where runs are handed in, on this machine only; 0: the next port"
        ),
    ] = 0,
    expose_control: Annotated[
        bool,
        typer.Option("--expose-control", help="let whoever reaches the port submit runs and register keys"),
    ] = False,
) -> None:
    """Start the server with TLS, node keys, state on disk, and runs that survive its restart.

    On another interface than loopback, other machines reach what nodes need and nothing else.
    """
    from potluck.flower.deploy.keys import CA
    from potluck.flower.deploy.serve import keep_alive, server_commands

    served = server_commands(
        folder, host, port, insecure=insecure, control=control_port, expose=expose_control
    )
    typer.echo(served.where)
    keep_alive(folder, served.commands, typer.echo, up=(served.control, "" if insecure else str(folder / CA)))
