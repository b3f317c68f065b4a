"""`potluck server`: the server of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Set up and start the server of a federation.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--folder", help="certificates, state and logs")]


@app.command("keys")
def keys(
    public_keys: Annotated[
        list[Path] | None, typer.Argument(metavar="NODE.key.pub…", help="public keys of nodes to admit")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="a host name or address of this machine")
    ] = None,
    folder: Folder = Path("potluck-server"),
    server: Annotated[
        str | None,
        typer.Option(
            "--server", help="address for runs and keys of the running server; default: as it was started"
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="the node's name; default: the name in its key file")
    ] = "",
) -> None:
    """Create the server's certificates once; register nodes' public keys with the running server."""
    from potluck.flower.deploy.keys import CA, make_certificates, name_in_key

    if not (folder / CA).exists():
        make_certificates(folder, [*(host or []), "localhost", "127.0.0.1"])
        typer.echo(f"Wrote certificates to {folder}. Give {folder / CA} to every node.")
    if public_keys:
        from potluck.core.errors import PotluckError
        from potluck.flower.deploy.serve import recorded_control
        from potluck.flower.deploy.submit import register

        if name and len(public_keys) > 1:
            raise PotluckError(f"--name {name!r} can be the name of one key; register the others separately.")
        for path in public_keys:
            node = name or name_in_key(path)
            register(path, node, server or recorded_control(folder), folder / CA)
            typer.echo(f"Registered {path} as {node}; no other key can use this name.")


@app.command("start")
def start(
    folder: Folder = Path("potluck-server"),
    host: Annotated[str, typer.Option("--host", help="interface to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port")] = 8000,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="no TLS, no node keys: only on a network you trust")
    ] = False,
    control_port: Annotated[
        int,
        typer.Option(
            "--control-port", help="port for submitting runs, on this machine only; 0: the next port"
        ),
    ] = 0,
    expose_control: Annotated[
        bool,
        typer.Option("--expose-control", help="allow other machines to submit runs and to register keys"),
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", help="NAME=NUMBER: a limit of the proxy for nodes, such as body_mb=32"),
    ] = None,
) -> None:
    """Start the server with TLS and node keys; its state is on disk, and runs survive its restart.

    On an interface other than loopback, other machines reach only the ports that nodes need.
    """
    from potluck.flower.deploy.connection_limits import ProxyLimits
    from potluck.flower.deploy.keys import CA
    from potluck.flower.deploy.serve import record_control, server_commands, supervise

    served = server_commands(
        folder,
        host,
        port,
        insecure=insecure,
        control=control_port,
        expose=expose_control,
        limits=ProxyLimits.parse(limit) if limit else None,
    )
    record_control(folder, served.control)
    typer.echo(served.description)
    supervise(
        folder, served.commands, typer.echo, ready_at=(served.control, "" if insecure else str(folder / CA))
    )
