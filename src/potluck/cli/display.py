"""What a person sees while a run goes on and when it is over."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from potluck.loop.callbacks import Callback, Step
from potluck.loop.loop import Loop

PLAIN_LINES = 20


@contextmanager
def progress(label: str, *, quiet: bool, rounds: int = 0) -> Iterator[list[Callback]]:
    """The callbacks that show a run: a bar on a terminal, plain lines elsewhere, nothing when quiet."""
    if quiet:
        yield []
    elif sys.stderr.isatty():
        with Progress(
            TextColumn("{task.fields[label]:>12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        ) as bar:
            yield [_Bar(bar, label, rounds)]
    else:
        yield [_Lines(label, rounds)]


class _News(Callback):
    """Keeps the story so far: accuracy with its trend, loss, traffic, failures."""

    def __init__(self, label: str, rounds: int = 0) -> None:
        self.label = label
        self.rounds = rounds
        self._accuracy: float | None = None
        self._bytes = 0
        self._failures = 0

    def on_start(self, loop: Loop) -> None:
        self.rounds = loop.schedule.rounds

    def news(self, step: Step) -> str:
        """The latest figures in a few words."""
        record = step.record
        self._bytes += record.bytes_up + record.bytes_down
        self._failures += len(record.failures)
        parts = []
        if record.accuracy is not None:
            before, self._accuracy = self._accuracy, record.accuracy
            parts.append(f"accuracy {record.accuracy:.1%}{_trend(before, record.accuracy)}")
        elif self._accuracy is not None:
            parts.append(f"accuracy {self._accuracy:.1%}")
        if record.train_loss is not None:
            parts.append(f"loss {record.train_loss:.3f}")
        parts.append(size(self._bytes))
        if self._failures:
            parts.append(f"{self._failures} failed")
        return "  ".join(parts)


def _trend(before: float | None, now: float) -> str:
    if before is None:
        return ""
    return "↑" if now > before else "↓" if now < before else "="


class _Bar(_News):
    def __init__(self, bar: Progress, label: str, rounds: int = 0) -> None:
        super().__init__(label, rounds)
        self.bar = bar
        self.task = bar.add_task("", total=rounds or None, label=label, news="")

    def on_start(self, loop: Loop) -> None:
        super().on_start(loop)
        self.bar.update(self.task, total=self.rounds, completed=loop.progress.ended // loop.cohort)

    def on_step(self, step: Step) -> None:
        self.bar.update(self.task, completed=step.record.round, news=self.news(step))


class _Lines(_News):
    def on_step(self, step: Step) -> None:
        text = self.news(step)
        often = max(1, self.rounds // PLAIN_LINES)
        number = step.record.round
        if step.record.accuracy is not None and (number % often == 0 or number == self.rounds):
            print(f"{self.label}  round {number}/{self.rounds}  {text}", file=sys.stderr, flush=True)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


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
    from potluck.analysis.tables import print_comparison, to_csv, to_latex, to_markdown
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
