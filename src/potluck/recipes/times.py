"""Measure the processor time of a run's clients and server, for columns that compare methods on one machine."""

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
    """Keeps the processor time of clients' training jobs and of the server's functions, as the last command found it.

    A client's first job in this process is left out, because kernels and data are prepared in it; where no client
    has another one, first jobs are what there is.
    """

    def __init__(self, run: Path) -> None:
        self.file = run / FILE
        self.first_jobs: dict[int, float] = {}
        self.later_jobs: list[float] = []
        self._loop: Loop | None = None
        self._first = 0

    def on_start(self, loop: Loop) -> None:
        """Note where this command begins."""
        self._loop, self._first = loop, loop.progress.ended

    def on_arrival(self, arrival: Arrival) -> None:
        """Add the processor time of a training job."""
        if arrival.kind != "train" or arrival.failure is not None:
            return
        if arrival.client in self.first_jobs:
            self.later_jobs.append(arrival.processor_seconds)
        else:
            self.first_jobs[arrival.client] = arrival.processor_seconds

    def on_end(self, end: End) -> None:
        """Write both means: per training job, and of the server per round."""
        assert self._loop is not None
        rounds = (self._loop.progress.ended - self._first) / self._loop.cohort
        jobs = self.later_jobs or list(self.first_jobs.values())
        if jobs:
            times = {"client": sum(jobs) / len(jobs), "server": self._loop.server.seconds / rounds}
            write_atomic(self.file, json.dumps(times) + "\n")


def read_time(run: Path, side: str) -> float:
    """Return processor seconds: of a `client` per training job, of the `server` per round; nan without a record."""
    file = run / FILE
    return float(parse_json(read_text(file))[side]) if file.exists() else math.nan
