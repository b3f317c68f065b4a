"""What a person sees while runs go on: bars that line up and move within a round, time left, what is to come."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from potluck.analysis.text import duration
from potluck.loop.callbacks import Arrival, Callback, Step
from potluck.loop.loop import Loop

PLAIN_LINES = 20
WIDEST = 40
"""Characters of a label; longer ones lose their end, so that bars line up."""
Show = Callable[[str], AbstractContextManager[list[Callback]]]


@contextmanager
def progress(label: str, *, quiet: bool) -> Iterator[list[Callback]]:
    """The callbacks that show one run: a bar on a terminal, plain lines elsewhere, nothing when quiet."""
    with board([label], quiet=quiet) as show, show(label) as callbacks:
        yield callbacks


@contextmanager
def board(labels: Sequence[str], *, quiet: bool) -> Iterator[Show]:
    """Shows runs that follow each other: `show(label)` gives the callbacks of the next one, to be used in its order."""
    if quiet:
        yield _silent
    elif sys.stderr.isatty():
        width = min(WIDEST, max(map(len, labels), default=0))
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
        yield _plain


def counted(total: int, say: Callable[[str], None]) -> Callable[[str], None]:
    """Puts before each line how many there will be, and after it about how long the rest takes."""
    began, done = time.monotonic(), 0

    def told(line: str) -> None:
        nonlocal done
        done += 1
        left = (time.monotonic() - began) / done * max(0, total - done)
        rest = f"  (about {duration(left)} left)" if done < total else ""
        say(f"[{done}/{max(total, done)}] {line}{rest}")

    return told


@contextmanager
def _silent(label: str) -> Iterator[list[Callback]]:
    yield []


@contextmanager
def _plain(label: str) -> Iterator[list[Callback]]:
    yield [_Lines(label)]


class _News(Callback):
    """Keeps the story so far: accuracy with its trend, loss, traffic, failures."""

    def __init__(self, label: str) -> None:
        self.label, self.rounds = label, 0
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


class _Bars:
    """The bars of a terminal: one of the present run, and below it one of all, where there are several."""

    def __init__(self, bars: Progress, labels: Sequence[str], width: int) -> None:
        self.bars, self.labels, self.width = bars, list(labels), width
        self.done = 0
        self.all: TaskID | None = None
        if len(labels) > 1:
            where = f"0/{len(labels)} runs"
            self.all = bars.add_task("", total=len(labels), label=self.fitted("all"), where=where, news="")

    def fitted(self, label: str) -> str:
        """A label of the common width."""
        return f"{label if len(label) <= self.width else label[: self.width - 1] + '…':<{self.width}}"

    @contextmanager
    def show(self, label: str) -> Iterator[list[Callback]]:
        """The next run's bar, above the one of all; it becomes a plain line when the run is over."""
        task = self.bars.add_task("", total=None, label=self.fitted(label), where="", news="starting")
        self.tell(0.0)
        one = _Bar(self, task, label)
        try:
            yield [one]
        finally:
            if len(self.labels) > 1:
                self.bars.remove_task(task)
                self.bars.console.print(f"{self.fitted(label)}  {one.last}", highlight=False, markup=False)
            self.done += 1
            self.tell(0.0)

    def tell(self, share: float) -> None:
        """How far all runs are, when the present one is at this share of its own."""
        if self.all is not None:
            coming = self.labels[self.done + 1 :]
            names = ", ".join(coming[:3]) + (f" and {len(coming) - 3} more" if len(coming) > 3 else "")
            where, news = f"{self.done}/{len(self.labels)} runs", f"then {names}" if coming else ""
            self.bars.update(self.all, completed=self.done + share, where=where, news=news)


class _Bar(_News):
    """One run's bar: it moves with every client that is done, not only with rounds."""

    def __init__(self, board: _Bars, task: TaskID, label: str) -> None:
        super().__init__(label)
        self.board, self.task = board, task
        self.last = "nothing to do"
        self._cohort, self._round, self._arrived, self._samples = 1, 0, 0, 0

    def on_start(self, loop: Loop) -> None:
        super().on_start(loop)
        self._cohort, self._round = loop.cohort, loop.progress.ended // loop.cohort
        self.last = f"stopped in round {self._round + 1}"
        self.board.bars.update(self.task, total=self.rounds)
        self._move("")

    def on_arrival(self, arrival: Arrival) -> None:
        if arrival.kind == "train":
            self._arrived, self._samples = self._arrived + 1, self._samples + arrival.samples
            self._move(None)

    def on_step(self, step: Step) -> None:
        if step.record.round > self._round:
            self._round, self._arrived = step.record.round, 0
        self.last = self.news(step)
        self._move(self.last)

    def _move(self, news: str | None) -> None:
        within = min(0.99, self._arrived / self._cohort) if self._round < self.rounds else 0.0
        done = self._round + within
        self.board.bars.update(self.task, completed=done, where=f"{self._round}/{self.rounds}")
        if news is not None:
            self.board.bars.update(self.task, news=news)
        self.board.tell(done / max(1, self.rounds))


class _Lines(_News):
    """Plain lines, for files and pipes."""

    def on_start(self, loop: Loop) -> None:
        super().on_start(loop)
        self._began, self._first = time.monotonic(), loop.progress.ended // loop.cohort

    def on_step(self, step: Step) -> None:
        text = self.news(step)
        often = max(1, self.rounds // PLAIN_LINES)
        number = step.record.round
        if step.record.accuracy is not None and (number % often == 0 or number == self.rounds):
            each = (time.monotonic() - self._began) / max(1, number - self._first)
            left = f"  about {duration(each * (self.rounds - number))} left" if number < self.rounds else ""
            print(f"{self.label}  round {number}/{self.rounds}  {text}{left}", file=sys.stderr, flush=True)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
