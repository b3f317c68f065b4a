"""`potluck push`: send a finished run's models and results to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def push(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    repo: Annotated[
        str, typer.Argument(metavar="REPO", help="OWNER/NAME of a Hub repository, made if needed")
    ],
    client: Annotated[
        list[int] | None, typer.Option("--client", help="only this client's model, from 0; may be repeated")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="a new repository is public")] = False,
) -> None:
    """Push a finished run's models, a model card and the results table to a Hugging Face Hub repository."""
    from potluck.report.push import push_run

    typer.echo(f"Pushed: {push_run(run, repo, client or (), public=public)}")
