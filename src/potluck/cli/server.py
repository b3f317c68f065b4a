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
    server: Annotated[str, typer.Option("--server", help="the running server")] = "127.0.0.1:8000",
) -> None:
    """Make the server's certificates once; register nodes' public keys with the running server."""
    from potluck.flower.deploy.keys import CA, make_certificates

    if not (folder / CA).exists():
        make_certificates(folder, [*(host or []), "localhost", "127.0.0.1"])
        typer.echo(f"Wrote certificates to {folder}. Give {folder / CA} to every node.")
    if public_keys:
        from potluck.flower.deploy.submit import register

        for path in public_keys:
            register(path, server, folder / CA)
            typer.echo(f"Registered {path}.")


@app.command("start")
def start(
    folder: Folder = Path("potluck-server"),
    host: Annotated[str, typer.Option("--host", help="the interface to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port")] = 8000,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="no TLS, no node keys: only on a network you trust")
    ] = False,
) -> None:
    """Start the server with TLS, node keys, state on disk, and runs that survive its restart."""
    from potluck.flower.deploy.keys import CA
    from potluck.flower.deploy.serve import keep_alive, server_commands

    commands = server_commands(folder, host, port, insecure=insecure)
    here = "127.0.0.1" if host == "0.0.0.0" else host
    up = (f"{here}:{port}", "" if insecure else str(folder / CA))
    typer.echo(f"Serving on {host}:{port}. Stop with Ctrl-C.")
    keep_alive(folder, commands, typer.echo, up=up)
