"""Progress and results in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from potluck.analysis.formatting import duration
from potluck.core.errors import plain
from potluck.loop.callbacks import Arrival, Callback, Step
from potluck.loop.loop import Loop

MAX_LINES = 20
"""Lines that a run prints where there is no terminal."""
MAX_LABEL = 40
"""Characters of a label; longer labels are cut, so that bars line up."""


class Show(Protocol):
    """Gives the callbacks that show the next run; `rounds` is its length, where that is known beforehand."""

    def __call__(self, label: str, rounds: int = 0) -> AbstractContextManager[list[Callback]]:
        """Show one run."""


@contextmanager
def progress(label: str, rounds: int, *, quiet: bool) -> Iterator[list[Callback]]:
    """Give the callbacks that show one run: a bar on a terminal, plain lines elsewhere, none if quiet."""
    with board([label], quiet=quiet) as show, show(label, rounds) as callbacks:
        yield callbacks


@contextmanager
def board(labels: Sequence[str], *, quiet: bool) -> Iterator[Show]:
    """Show runs that follow each other: `show(label)` gives the callbacks of the next one, in the order of labels."""
    if quiet:
        yield _show_nothing
    elif sys.stderr.isatty():
        width = min(MAX_LABEL, max(map(len, labels), default=0))
        with Progress(
            TextColumn("{task.fields[label]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[where]:>11}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[news]}"),
            console=Console(stderr=True),
        ) as bars:
            yield _Bars(bars, labels, width).show
    else:
        yield _show_lines


def count_lines(total: int, say: Callable[[str], None]) -> Callable[[str], None]:
    """Number lines that are printed, out of `total`, and append an estimate of the remaining time."""
    started, count = time.monotonic(), 0

    def say_counted(line: str) -> None:
        nonlocal count
        count += 1
        seconds_left = (time.monotonic() - started) / count * max(0, total - count)
        rest = f"  (about {duration(seconds_left)} left)" if count < total else ""
        say(f"[{count}/{max(total, count)}] {line}{rest}")

    return say_counted


@contextmanager
def _show_nothing(label: str, rounds: int = 0) -> Iterator[list[Callback]]:
    yield []


@contextmanager
def _show_lines(label: str, rounds: int = 0) -> Iterator[list[Callback]]:
    yield [_Lines(label, rounds)]


class _Watch(Callback):
    """Collects accuracy with its trend, loss, traffic and failures.

    An engine whose loop runs in another process (Flower) reports steps and nothing else, so `on_start` only refines
    what is known without it: the number of rounds, and the round that a resumed run starts from.
    """

    def __init__(self, label: str, rounds: int = 0) -> None:
        self.label, self.rounds = label, rounds
        self.started = time.monotonic()
        self.first: int | None = None
        """Rounds that were done before this process watched; None: not known yet."""
        self._accuracy: float | None = None
        self._bytes = 0
        self._failures = 0

    def on_start(self, loop: Loop) -> None:
        self.rounds, self.first = loop.schedule.rounds, loop.progress.ended // loop.cohort
        self.started = time.monotonic()

    def summarise(self, step: Step) -> str:
        """Return the latest figures in one line."""
        record = step.record
        if self.first is None:
            self.first = record.round - 1
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

    def position(self, number: int) -> str:
        """Return `3/20`, or `3` where the number of rounds is not known."""
        return f"{number}/{self.rounds}" if self.rounds else str(number)


def _trend(before: float | None, now: float) -> str:
    if before is None:
        return ""
    return "↑" if now > before else "↓" if now < before else "="


class _Bars:
    """The bars of a terminal: one of the present run, and below it one of all runs, if there are several."""

    def __init__(self, bars: Progress, labels: Sequence[str], width: int) -> None:
        self.bars, self.labels, self.width = bars, list(labels), width
        self.done = 0
        self.all: TaskID | None = None
        if len(labels) > 1:
            where = f"0/{len(labels)} runs"
            self.all = bars.add_task("", total=len(labels), label=self.fit_label("all"), where=where, news="")

    def fit_label(self, label: str) -> str:
        """Cut or pad a label to the common width."""
        return f"{label if len(label) <= self.width else label[: self.width - 1] + '…':<{self.width}}"

    @contextmanager
    def show(self, label: str, rounds: int = 0) -> Iterator[list[Callback]]:
        """Show the next run as a bar above the one of all runs; it becomes a plain line when the run is over."""
        task = self.bars.add_task(
            "", total=rounds or None, label=self.fit_label(label), where="", news="starting"
        )
        self.update_all(0.0)
        bar = _Bar(self, task, label, rounds)
        try:
            yield [bar]
        finally:
            if len(self.labels) > 1:
                self.bars.remove_task(task)
                self.bars.console.print(f"{self.fit_label(label)}  {bar.last}", highlight=False, markup=False)
            self.done += 1
            self.update_all(0.0)

    def update_all(self, share: float) -> None:
        """Move the bar of all runs; `share` is how much of the present run is done."""
        if self.all is not None:
            coming = self.labels[self.done + 1 :]
            names = ", ".join(coming[:3]) + (f" and {len(coming) - 3} more" if len(coming) > 3 else "")
            where, news = f"{self.done}/{len(self.labels)} runs", f"then {names}" if coming else ""
            self.bars.update(self.all, completed=self.done + share, where=where, news=news)


class _Bar(_Watch):
    """The bar of one run; it moves with every job that ends, not only with rounds."""

    def __init__(self, board: _Bars, task: TaskID, label: str, rounds: int = 0) -> None:
        super().__init__(label, rounds)
        self.board, self.task = board, task
        self.last = "nothing to do"
        self._cohort, self._round, self._arrived = 1, 0, 0

    def on_start(self, loop: Loop) -> None:
        super().on_start(loop)
        self._cohort, self._round = loop.cohort, loop.progress.ended // loop.cohort
        self.last = f"stopped in round {self._round + 1}"
        self.board.bars.update(self.task, total=self.rounds)
        self._move("")

    def on_arrival(self, arrival: Arrival) -> None:
        if arrival.kind == "train":
            self._arrived += 1
            self._move(None)

    def on_step(self, step: Step) -> None:
        if step.record.round > self._round:
            self._round, self._arrived = step.record.round, 0
        self.last = self.summarise(step)
        self._move(self.last)

    def _move(self, news: str | None) -> None:
        within = min(0.99, self._arrived / self._cohort) if self._round < self.rounds else 0.0
        position = self._round + within
        self.board.bars.update(self.task, completed=position, where=self.position(self._round))
        if news is not None:
            self.board.bars.update(self.task, news=news)
        self.board.update_all(position / max(1, self.rounds))


class _Lines(_Watch):
    """Plain lines, for files and pipes."""

    def on_step(self, step: Step) -> None:
        text, number = self.summarise(step), step.record.round
        is_due = number % max(1, self.rounds // MAX_LINES) == 0 or number == self.rounds
        if step.record.accuracy is None or not is_due:
            return
        assert self.first is not None
        time_left = ""
        if number < self.rounds:
            seconds = (time.monotonic() - self.started) / max(1, number - self.first) * (self.rounds - number)
            time_left = f"  about {duration(seconds)} left"
        print(f"{self.label}  round {self.position(number)}  {text}{time_left}", file=sys.stderr, flush=True)


def size(count: float) -> str:
    """Return bytes for people."""
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
    from potluck.report.safeguard import safeguard_sentence
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
    for sentence in dict.fromkeys(_imputation(run.summary) for run in runs if run.summary.get("imputed")):
        console.print(sentence, highlight=False, soft_wrap=True)
    for run in runs:
        if section := run.summary.get("attack"):
            console.print(_under_attack(section), highlight=False, soft_wrap=True)
        if section := run.summary.get("safeguard"):
            console.print(safeguard_sentence(section), highlight=False, soft_wrap=True)
    for path in paths if report is None or len(paths) > 1 else [report]:
        console.print(f"Run folder: {path}", highlight=False, soft_wrap=True)
    if report is not None:
        page = write_report(runs, report / REPORT, reference=reference, target=target)
        console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def _imputation(summary: Mapping[str, Any]) -> str:
    return imputation_sentence(summary["dataset"], summary["imputed"])


def imputation_sentence(data: str, imputed: Mapping[str, int]) -> str:
    """Return a sentence on how many missing values of each column were replaced."""
    columns = ", ".join(f"{count:,} of {plain(name, 60)}" for name, count in imputed.items())
    return f"Missing values of {data} replaced by the mean or the most frequent word: {columns}"


def _under_attack(attack: dict[str, Any]) -> str:
    """Return a sentence on the attackers and the effect of their attack; the table counts the attackers as well."""
    percent = [
        "unknown" if attack[key] is None else f"{attack[key]:.1%}" for key in ("honest_accuracy", "success")
    ]
    return (
        f"Under attack: {attack['kind']} of strength {attack['strength']:g} by {len(attack['clients'])} clients; "
        f"honest clients {percent[0]}, the attack's success {percent[1]}."
    )
