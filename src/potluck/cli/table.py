"""`potluck table`: a comparison of runs as a file for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.compare import Columns, Reference, Target


def table(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="run folders, or folders that hold some")
    ],
    out: Annotated[Path, typer.Option("--out", help="the table: .tex, .md or .csv")] = Path("table.tex"),
    columns: Columns = None,
    target: Target = None,
    reference: Reference = None,
    caption: Annotated[str, typer.Option("--caption", help="LaTeX: the table's caption")] = "",
    label: Annotated[str, typer.Option("--label", help="LaTeX: the table's label, such as tab:main")] = "",
) -> None:
    """Write a comparison of runs for a paper; in LaTeX the best and second best are marked by test."""
    from potluck.analysis.comparison import compare
    from potluck.analysis.latex import to_latex
    from potluck.analysis.tables import to_csv, to_markdown
    from potluck.cli.compare import column_list
    from potluck.core.errors import PotluckError, unknown
    from potluck.runs.folder import write_files
    from potluck.runs.read import read_runs

    ending = out.suffix.removeprefix(".")
    if ending not in ("tex", "md", "csv"):
        raise unknown("table format", ending or out.name, ("tex", "md", "csv"))
    if ending != "tex" and (caption or label):
        raise PotluckError(f"--caption and --label are of LaTeX tables; name the file {out.stem}.tex.")
    comparison = compare(read_runs(*runs), target, reference, column_list(columns, target))
    forms = {"csv": to_csv, "md": to_markdown}
    text = to_latex(comparison, caption, label) if ending == "tex" else forms[ending](comparison)
    write_files(out.parent, {out.name: text})
    typer.echo(f"Table: {out}")
