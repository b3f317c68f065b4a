"""Measure speed and memory as ratios inside one run: `python -m benchmarks`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks import PARTS, run_suite
from potluck.core.errors import PotluckError


def main(
    quick: Annotated[bool, typer.Option("--quick", help="under a minute; the figures mean little")] = False,
    out: Annotated[Path, typer.Option("--out", help="folder for bench.md and bench.json")] = Path("bench"),
    part: Annotated[list[str] | None, typer.Option("--part", help=" | ".join(PARTS))] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", help="table to keep the rows in; rows of the same parts are replaced"),
    ] = None,
) -> None:
    """Measure speed and memory as ratios inside one run; about a quarter of an hour on two free cores."""
    try:
        run_suite(out, quick=quick, parts=part or PARTS, show=typer.echo, store=store)
    except PotluckError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
