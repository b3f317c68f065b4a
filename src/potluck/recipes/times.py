"""Measure how long clients and the server of a run work, for columns that compare methods on one machine."""

from __future__ import annotations

import json
import math
from pathlib import Path

from potluck.core.files import parse_json, read_text
from potluck.loop.callbacks import Arrival, Callback, End
from potluck.loop.loop import Loop
from potluck.runs.folder import write_atomic

FILE = "times.json"


class TimeMeter(Callback):
    """Keeps the time of clients' training jobs and of the server's functions, as the last command found it."""

    def __init__(self, run: Path) -> None:
        self.file = run / FILE
        self.jobs, self.seconds = 0, 0.0
        self._loop: Loop | None = None
        self._first = 0

    def on_start(self, loop: Loop) -> None:
        """Note where this command begins."""
        self._loop, self._first = loop, loop.progress.ended

    def on_arrival(self, arrival: Arrival) -> None:
        """Add the time of a training job."""
        if arrival.kind == "train" and arrival.failure is None:
            self.jobs, self.seconds = self.jobs + 1, self.seconds + arrival.seconds

    def on_end(self, end: End) -> None:
        """Write both means: per training job, and of the server per round."""
        assert self._loop is not None
        rounds = (self._loop.progress.ended - self._first) / self._loop.cohort
        if self.jobs:
            times = {"client": self.seconds / self.jobs, "server": self._loop.server.seconds / rounds}
            write_atomic(self.file, json.dumps(times) + "\n")


def read_time(run: Path, side: str) -> float:
    """Return the seconds of a `client` per training job, or of the `server` per round; nan where there is no record."""
    file = run / FILE
    return float(parse_json(read_text(file))[side]) if file.exists() else math.nan
