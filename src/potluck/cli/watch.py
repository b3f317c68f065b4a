"""`potluck watch`: a page that follows runs while they train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUNS…]", help="run folders, or folders that hold them; else runs/"),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="0: any that is free", min=0, max=65535)] = 0,
) -> None:
    """Serve one page to this machine that follows runs while they train; it only reads. Ctrl-C ends it."""
    from potluck.core.errors import PotluckError
    from potluck.report.live.serve import LiveServer
    from potluck.report.live.watched import Watched
    from potluck.runs.folder import RUNS

    for place in runs or ():
        if not place.is_dir():
            raise PotluckError(f"No folder at {str(place)!r}: pass one that holds runs, or will.")
    places = runs or [RUNS]
    with LiveServer(Watched(places), port) as server:
        typer.echo(
            f"Watching {', '.join(str(place) for place in places)}. Open this, and keep it to yourself:"
        )
        typer.echo(server.address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            typer.echo("No longer watching; the runs go on.")
