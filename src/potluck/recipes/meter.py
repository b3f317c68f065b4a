"""Processor time of a run, over all processes that worked on it and over all commands that continued it."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from potluck.core.files import parse_json, read_text
from potluck.loop.callbacks import Callback, End, Step
from potluck.loop.loop import Loop
from potluck.runs.folder import write_atomic

FILE = ".spent.json"
EVERY = 5.0
"""Seconds between two writings, at the least."""


class ProcessorMeter(Callback):
    """Keeps in the run's folder the processor seconds spent on it so far and the commits that did the work."""

    def __init__(self, run: Path, commit: str) -> None:
        self.file = run / FILE
        self.before, commits = read_processor_time(run)
        self.commits = [*commits, *([commit] if commit not in commits else [])]
        self._start, self._written = processor_seconds(), 0.0

    @property
    def seconds(self) -> float:
        """Processor seconds of the run, those of killed and stopped commands included."""
        return self.before + processor_seconds() - self._start

    def on_start(self, loop: Loop) -> None:
        """Put the commit on record before the first round."""
        self.write()

    def on_step(self, step: Step) -> None:
        """Write at most every few seconds."""
        if time.monotonic() - self._written >= EVERY:
            self.write()

    def on_end(self, end: End) -> None:
        """Write the whole."""
        self.write()

    def write(self) -> None:
        """Write the file, if its folder is there."""
        self._written = time.monotonic()
        if self.file.parent.is_dir():
            content = {"core_seconds": round(self.seconds, 2), "commits": self.commits}
            write_atomic(self.file, json.dumps(content) + "\n")


def read_processor_time(run: Path) -> tuple[float, list[str]]:
    """Return the processor seconds and the commits on record for a run; 0 and none where there is no record."""
    try:
        told = parse_json(read_text(run / FILE))
        return float(told["core_seconds"]), [str(commit) for commit in told["commits"]]
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0, []


def processor_seconds() -> float:
    """Return what this process and all its descendants, ended or alive, have spent."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + sum(_of_process(pid) for pid in _descendants(os.getpid()))


def _descendants(pid: int) -> list[int]:
    """The living processes below one; none where the system does not list them."""
    found: list[int] = []
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii")
            found += [int(word) for word in text.split()]
    return found + [deeper for child in found for deeper in _descendants(child)]


def _of_process(pid: int) -> float:
    """User and system time of a process and of its ended children."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    ticks = text.rpartition(")")[2].split()[11:15]  # utime, stime, cutime, cstime
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
