"""Whole runs with a hundred clients a round in ever larger populations: start, round and memory as a user sees them."""

from __future__ import annotations

import functools
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.memory import call_in_new_process, resident
from benchmarks.rows import Row
from benchmarks.trials import Spread, ratio, time_alternately
from potluck.core.payload import Payload
from potluck.core.random import generator
from potluck.core.task import ClientInfo
from potluck.data import Data, as_data
from potluck.experiment import parse_experiment
from potluck.loop.callbacks import Callback, Step
from potluck.loop.loop import Loop
from potluck.runs.plan import Parts
from potluck.runs.resolve import resolve
from potluck.runs.train import run_plan

IMAGES_PER_CLIENT = 20
"""Images that each client has."""

FLAT, START, MEMORY = 1.1, 2.0, 3.0
"""A round of a hundredfold population may take this many times as long, its start so many rounds of the hundred, and
its memory so many times as much. Who is registered costs a line at the start and in memory (a name, a size, the numbers
of its rows) and nothing in a round."""

SCHEDULES: dict[str, dict[str, Any]] = {
    "a round": {},
    "a round, answer by answer, 10 at work": {"mode": "async", "concurrency": 10},
}


def measure(sizes: Sequence[int], trials: int, rounds: int = 6) -> Iterator[Row]:
    """Processor seconds until the first message and of a round, and memory, at each number of registered clients.

    The first round is not counted: it has the digests of the population, which a checkpoint keeps.
    """
    cohort = min(100, sizes[0])
    part, smallest, largest = f"growth, cohort of {cohort}, small-mlp on 8×8", sizes[0], sizes[-1]
    seen = {way: _watched(sizes, cohort, way, trials, rounds) for way in SCHEDULES}
    images.cache_clear()
    starts = {size: [one.start for one in seen["a round"][size]] for size in sizes}
    for size in sizes:
        yield Row(part, f"{size:,} registered, start", Spread.of(starts[size]), "s")
    taken = {
        way: {size: [statistics.median(one.rounds[1:]) for one in runs[size]] for size in sizes}
        for way, runs in seen.items()
    }
    what = f"{largest:,} registered, start ÷ a round"
    yield Row(part, what, ratio(starts[largest], taken["a round"][largest]), goal=START)
    for way, found in taken.items():
        for size in sizes[1:]:
            what = f"{size:,} ÷ {smallest:,} registered, {way}"
            yield Row(part, what, ratio(found[size], found[smallest]), goal=FLAT)
    held = {size: call_in_new_process(_added, size, cohort, rounds) / 1e6 for size in sizes}
    for size in sizes:
        yield Row(part, f"{size:,} registered, memory of a run", Spread.of([held[size]]), "MB")
    what = f"{largest:,} ÷ {smallest:,} registered, memory of a run"
    yield Row(part, what, Spread.of([held[largest] / held[smallest]]), goal=MEMORY)


@functools.cache
def images(clients: int) -> Data:
    """Random images of the digits' size for so many clients."""
    rng, rows = generator("registered"), IMAGES_PER_CLIENT * clients
    x = torch.randint(0, 256, (rows, 1, 8, 8), generator=rng, dtype=torch.uint8)
    return as_data((x, torch.randint(0, 10, (rows,), generator=rng)))


class Watch(Callback):
    """Notes when the first message goes out, how long rounds take and what is held then, and ends the run there.

    A run to its end would test everybody, which is what takes long in a large population.
    """

    def __init__(self, rounds: int) -> None:
        self.wanted = rounds
        self.began, self.start, self.rounds = time.process_time(), 0.0, list[float]()
        self.held, self._last, self._loop = 0, 0.0, list[Loop]()

    def on_start(self, loop: Loop) -> None:
        """Remember the loop, which knows where rounds end."""
        self._loop = [loop]

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        """The start is over with the first message."""
        if not self.start:
            self._last = time.process_time()
            self.start = self._last - self.began

    def on_step(self, step: Step) -> None:
        """Where a round is over, note its time."""
        loop = self._loop[0]
        if loop.progress.ended % loop.cohort == 0:
            now = time.process_time()
            self.rounds.append(now - self._last)
            self._last = now
            if len(self.rounds) == self.wanted:
                gc.collect()
                self.held = resident([os.getpid()])
                raise _EnoughError


class _EnoughError(Exception):
    """All rounds were seen."""


def watched_run(data: Data, clients: int, cohort: int, way: str, rounds: int) -> Watch:
    """A run of FedGH with everything that a run writes, up to its last round."""
    watch = Watch(rounds)
    values: dict[str, Any] = {
        "method": {"name": "fedgh"},
        "partition": {"rule": "iid", "clients": clients},
        "models": {"names": ["small-mlp"]},
        "training": {"epochs": 1, "batch_size": 10, "lr": 0.01},
        "schedule": {"rounds": 1000, "participation": cohort / clients, **SCHEDULES[way]},
        "engine": {"name": "serial"},
    }
    rows = IMAGES_PER_CLIENT * clients
    mine = as_data((data.x[:rows], data.y[:rows]))
    with tempfile.TemporaryDirectory() as folder:
        resolved = resolve(parse_experiment(values), Parts(data=mine))
        try:
            run_plan(resolved, out=Path(folder) / "run", callbacks=[watch])
        except _EnoughError:
            return watch
    raise AssertionError("a run of a thousand rounds ended")


def _watched(sizes: Sequence[int], cohort: int, way: str, trials: int, rounds: int) -> dict[int, list[Watch]]:
    """Runs of all sizes in turns; the first of each is not counted."""
    data, seen = images(sizes[-1]), {size: list[Watch]() for size in sizes}

    def go(size: int) -> None:
        seen[size].append(watched_run(data, size, cohort, way, rounds))

    time_alternately({str(size): functools.partial(go, size) for size in sizes}, trials)
    return {size: found[1:] for size, found in seen.items()}


def _added(clients: int, cohort: int, rounds: int) -> int:
    """What a run adds to a process that has the data already."""
    data = images(clients)
    before = resident([os.getpid()])
    return watched_run(data, clients, cohort, "a round", rounds).held - before
