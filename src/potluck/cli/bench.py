"""`potluck bench`: what Potluck costs and gains on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="under a minute; the figures mean little")] = False,
    out: Annotated[Path, typer.Option("--out", help="folder for bench.md and bench.json")] = Path("bench"),
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="local | step | methods | measures | pool | vectorized | small-clients | layout | data | shares "
            "| growth",
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", help="table to keep the rows in, such as results/bench.csv; same parts are replaced"
        ),
    ] = None,
) -> None:
    """Measure speed and memory as ratios inside one run; about a quarter of an hour on two free cores."""
    from potluck.bench import PARTS, run_suite

    run_suite(out, quick=quick, parts=part or PARTS, show=typer.echo, store=store)
