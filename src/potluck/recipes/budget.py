"""What a run spends: a limit on its time, and the processor time of its processes, kept across resumes."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from time import monotonic

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, process_status, read_text
from potluck.core.payload import Payload
from potluck.core.task import ClientInfo
from potluck.loop.callbacks import Callback, End, Step
from potluck.loop.loop import Loop
from potluck.runs.folder import write_atomic

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


class BudgetSpentError(Exception):
    """Raised to leave a run whose time is up; its last checkpoint holds every finished round."""


def parse_budget(text: str) -> float:
    """Return the seconds of a duration such as 90m, 6h or 1.5d."""
    match = _TEXT.fullmatch(text.strip())
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise PotluckError(f"--budget {text!r} is not a duration; write for instance 90m, 6h or 1.5d.")
    return seconds


class Budget(Callback):
    """Raises `BudgetSpentError` when the first message of a new round is sent after the time is up."""

    def __init__(self, seconds: float) -> None:
        self._ends = monotonic() + seconds
        self._between_rounds = False
        self._loop: Loop | None = None

    @property
    def spent(self) -> bool:
        """Whether the time is up."""
        return monotonic() >= self._ends

    def on_start(self, loop: Loop) -> None:
        """Note that a run begins or continues: at the end of a round."""
        self._loop, self._between_rounds = loop, False  # it may always do one round

    def on_step(self, step: Step) -> None:
        """Note whether a round is over."""
        assert self._loop is not None
        self._between_rounds = self._loop.progress.ended % self._loop.cohort == 0

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        """Leave the run where a checkpoint was just taken."""
        if self._between_rounds and self.spent:
            raise BudgetSpentError
        self._between_rounds = False


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
        record = parse_json(read_text(run / FILE))
        return float(record["core_seconds"]), [str(commit) for commit in record["commits"]]
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0, []


def processor_seconds() -> float:
    """Return what this process and all its descendants, ended or alive, have spent."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + sum(_process_seconds(pid) for pid in _descendants(os.getpid()))


def _descendants(pid: int) -> list[int]:
    """Return the living descendants of a process; none where the system does not list them."""
    children: list[int] = []
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii")
            children += [int(word) for word in text.split()]
    return children + [deeper for child in children for deeper in _descendants(child)]


def _process_seconds(pid: int) -> float:
    """Return user and system time of a process and of its ended children."""
    ticks = (process_status(pid) or [])[11:15]  # utime, stime, cutime, cstime
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
