"""`potluck doctor`: what this machine can do, as a table to paste into an issue."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device", help="look at this accelerator; else at all that are found (repeat for more)"
        ),
    ] = None,
) -> None:
    """Look at the machine, train every kind of method on each device, and measure; about a minute."""
    from potluck.doctor import examine, table

    findings = []
    for one in examine(device or ()):
        typer.echo(f"{one.part}: {one.what}: {one.found}{'' if one.well else '  NOT WELL'}", err=True)
        findings.append(one)
    typer.echo(table(findings))
    if not all(one.well for one in findings):
        raise typer.Exit(1)
