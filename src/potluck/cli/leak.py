"""`potluck leak`: what a server could find out from the answers of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def leak(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run with --keep-answers")],
) -> None:
    """Score what the kept answers of a run give away, each score beside its chance level.

    Scores go to RUN/leaks.json, pictures made from the answers to RUN/leaks.png, and both into the run's report.
    """
    from rich.console import Console
    from rich.table import Table

    from potluck.analysis.leak import find_leaks
    from potluck.report.html import write_report
    from potluck.report.leaks import draw_pictures
    from potluck.runs.folder import LEAKS, REPORT, write_files

    found = find_leaks(run)
    table = Table(box=None, pad_edge=False)
    for heading, side in (("question", "left"), ("score", "right"), ("chance", "right"), ("cases", "right")):
        table.add_column(heading, justify="left" if side == "left" else "right")
    table.add_column("from")
    for one in found.scores:
        table.add_row(one.question, f"{one.score:.3f}", f"{one.chance:.3f}", str(one.cases), one.way)
    Console().print(table if found.scores else "Nothing was sent that these questions can be asked of.")
    for sentence in found.skipped:
        typer.echo(sentence)
    stored = found.stored()
    write_files(run, {LEAKS: json.dumps(stored, indent=1) + "\n"})
    typer.echo(f"Scores: {run / LEAKS}")
    if pictures := draw_pictures(run, stored["pictures"]):
        typer.echo(f"Pictures: {pictures}")
    typer.echo(f"Report: {write_report([run], run / REPORT)}")
