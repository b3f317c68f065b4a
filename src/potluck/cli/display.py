"""What a person sees when runs are over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console


def show_runs(
    paths: Sequence[Path],
    *,
    report: Path | None = None,
    tables: Path | None = None,
    target: float | None = None,
    reference: str | None = None,
    columns: Sequence[str] = (),
) -> None:
    """Print the table of finished runs; write the report and the tables where asked."""
    from potluck.analysis.comparison import compare
    from potluck.analysis.latex import to_latex
    from potluck.analysis.tables import print_comparison, to_csv, to_markdown
    from potluck.report.html import write_report
    from potluck.runs.folder import REPORT, write_files
    from potluck.runs.read import read_run

    runs = [read_run(path) for path in paths]
    comparison = compare(runs, target=target, reference=reference, columns=columns)
    console = Console()
    print_comparison(comparison, console)
    if tables is not None:
        forms = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
        write_files(tables, {f"comparison.{suffix}": form(comparison) for suffix, form in forms.items()})
        console.print(f"Tables: {tables}/comparison.csv, .md, .tex", highlight=False, soft_wrap=True)
    for run in runs:
        if found := run.summary.get("attack"):
            console.print(_under_attack(found), highlight=False, soft_wrap=True)
    for path in paths if report is None or len(paths) > 1 else [report]:
        console.print(f"Run folder: {path}", highlight=False, soft_wrap=True)
    if report is not None:
        page = write_report(runs, report / REPORT, reference=reference, target=target)
        console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def _under_attack(found: dict[str, Any]) -> str:
    """A sentence on who attacked and what came of it; the table counts the attackers as well."""
    percent = [
        "unknown" if found[key] is None else f"{found[key]:.1%}" for key in ("honest_accuracy", "success")
    ]
    return (
        f"Under attack: {found['kind']} of strength {found['strength']:g} by {len(found['clients'])} clients; honest "
        f"clients {percent[0]}, the attack's success {percent[1]}."
    )
