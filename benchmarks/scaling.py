"""Measure rounds of a fixed cohort in ever larger populations: seconds, start and memory."""

from __future__ import annotations

import functools
import gc
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from benchmarks.population import endless_loop, pool_engine, population, random_images, serial_engine
from benchmarks.results import Row, Spread, ratio, time_alternately
from potluck.core.payload import Payload
from potluck.core.random import generator, one_thread
from potluck.core.task import ClientInfo
from potluck.data import Data, as_data
from potluck.experiment import parse_experiment
from potluck.loop.callbacks import Callback, Step
from potluck.loop.loop import Loop
from potluck.methods.fedgh import FedGH
from potluck.runs.plan import Parts
from potluck.runs.resolve import resolve
from potluck.runs.train import run_plan
from potluck.worker.memory import retain_freed_memory


def resident(pids: list[int]) -> int:
    """Bytes that these processes hold together; pages they share count once."""
    return sum(_share(pid) for pid in pids)


def _share(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def call_in_new_process(function: Callable[..., int], *arguments: Any) -> int:
    """What a function gives in a new process, so that nothing of what came before counts."""
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(writer, function, *arguments))
    process.start()
    writer.close()
    result: int = reader.recv()
    process.join()
    return result


def _tell(writer: Connection, function: Callable[..., int], *arguments: Any) -> None:
    retain_freed_memory()
    with one_thread():
        writer.send(function(*arguments))


class Peak:
    """Watches processes while a block runs and keeps the most that they held together."""

    def __init__(self, pids: Callable[[], list[int]], every: float = 0.2) -> None:
        self.bytes = 0
        self._pids, self._every = pids, every
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self.bytes = max(self.bytes, resident(self._pids()))

    def _watch(self) -> None:
        while not self._done.wait(self._every):
            self.bytes = max(self.bytes, resident(self._pids()))


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


def measure_registered(sizes: Sequence[int], trials: int, rounds: int = 6) -> Iterator[Row]:
    """Processor seconds until the first message and of a round, and memory, at each number of registered clients.

    The first round is not counted: it has the digests of the population, which a checkpoint keeps.
    """
    cohort = min(100, sizes[0])
    part, smallest, largest = f"growth, cohort of {cohort}, small-mlp on 8×8", sizes[0], sizes[-1]
    recorder = {schedule: _watched(sizes, cohort, schedule, trials, rounds) for schedule in SCHEDULES}
    images.cache_clear()
    starts = {size: [watch.start for watch in recorder["a round"][size]] for size in sizes}
    for size in sizes:
        yield Row(part, f"{size:,} registered, start", Spread.of(starts[size]), "s")
    taken = {
        schedule: {size: [statistics.median(watch.rounds[1:]) for watch in runs[size]] for size in sizes}
        for schedule, runs in recorder.items()
    }
    label = f"{largest:,} registered, start ÷ a round"
    yield Row(part, label, ratio(starts[largest], taken["a round"][largest]), goal=START)
    for schedule_name, watches in taken.items():
        for size in sizes[1:]:
            label = f"{size:,} ÷ {smallest:,} registered, {schedule_name}"
            yield Row(part, label, ratio(watches[size], watches[smallest]), goal=FLAT)
    memory = {size: call_in_new_process(_added, size, cohort, rounds) / 1e6 for size in sizes}
    for size in sizes:
        yield Row(part, f"{size:,} registered, memory of a run", Spread.of([memory[size]]), "MB")
    label = f"{largest:,} ÷ {smallest:,} registered, memory of a run"
    yield Row(part, label, Spread.of([memory[largest] / memory[smallest]]), goal=MEMORY)


@functools.cache
def images(clients: int) -> Data:
    """Random images of the digits' size for so many clients."""
    rng, rows = generator("registered"), IMAGES_PER_CLIENT * clients
    x = torch.randint(0, 256, (rows, 1, 8, 8), generator=rng, dtype=torch.uint8)
    return as_data((x, torch.randint(0, 10, (rows,), generator=rng)))


class Watch(Callback):
    """Notes when the first message goes out, how long rounds take and what is held then, and ends the run there.

    A run to its end would test all clients, which is what takes long in a large population.
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


def watched_run(data: Data, clients: int, cohort: int, schedule: str, rounds: int) -> Watch:
    """A run of FedGH with everything that a run writes, up to its last round."""
    watch = Watch(rounds)
    values: dict[str, Any] = {
        "method": {"name": "fedgh"},
        "partition": {"rule": "iid", "clients": clients},
        "models": {"names": ["small-mlp"]},
        "training": {"epochs": 1, "batch_size": 10, "lr": 0.01},
        "schedule": {"rounds": 1000, "participation": cohort / clients, **SCHEDULES[schedule]},
        "engine": {"name": "serial"},
    }
    rows = IMAGES_PER_CLIENT * clients
    subset = as_data((data.x[:rows], data.y[:rows]))
    with tempfile.TemporaryDirectory() as folder:
        resolved = resolve(parse_experiment(values), Parts(data=subset))
        try:
            run_plan(resolved, out=Path(folder) / "run", callbacks=[watch])
        except _EnoughError:
            return watch
    raise AssertionError("a run of a thousand rounds ended")


def _watched(
    sizes: Sequence[int], cohort: int, schedule: str, trials: int, rounds: int
) -> dict[int, list[Watch]]:
    """Runs of all sizes in turns; the first of each is not counted."""
    data, seen = images(sizes[-1]), {size: list[Watch]() for size in sizes}

    def go(size: int) -> None:
        seen[size].append(watched_run(data, size, cohort, schedule, rounds))

    time_alternately({str(size): functools.partial(go, size) for size in sizes}, trials)
    return {size: watches[1:] for size, watches in seen.items()}


def _added(clients: int, cohort: int, rounds: int) -> int:
    """What a run adds to a process that has the data already."""
    data = images(clients)
    before = resident([os.getpid()])
    return watched_run(data, clients, cohort, "a round", rounds).held - before


COHORT = 10


def measure_growth(*, quick: bool = False) -> Iterator[Row]:
    """Processor seconds and memory of a round at 10 to 10,000 clients, and a population that cannot fit."""
    sizes = [10, 100, 1000] if quick else [10, 100, 1000, 10_000]
    loops = {}
    for size in sizes:
        federation = population(size, ["cnn-5"], 20, 10, tests=10)
        loops[size] = endless_loop(FedGH(), federation, serial_engine(FedGH(), federation), COHORT)
    seconds = time_alternately(
        {str(size): loop.step for size, loop in loops.items()}, 2 if quick else 7, clock=time.process_time
    )
    for size in sizes:
        yield Row("growth, cohort of 10", f"{size:,} clients, a round", Spread.of(seconds[str(size)]), "s")
    loops.clear()
    yield from measure_registered(*([100, 1000], 1, 2) if quick else ([1000, 10_000, 100_000], 5))
    for size in sizes:
        used = call_in_new_process(_memory_of, size, 2 if quick else 3) / 1e6
        yield Row("growth, cohort of 10", f"{size:,} clients, memory", Spread.of([used]), "MB")
    clients, rounds = (500, 2) if quick else (10_000, 6)
    peak = call_in_new_process(peak_memory, clients, rounds) / 1e6
    label = f"{clients:,} × cnn-5, 1 % per round, pool of 2, 1 GB for clients"
    yield Row("memory", label, Spread.of([peak]), "MB", 4000)


def peak_memory(clients: int, rounds: int) -> int:
    """The most that a pool and its parent hold, of a population whose weights alone may not fit."""
    federation = population(clients, ["cnn-5"], 20, 10, tests=10)
    engine = pool_engine(FedGH(), federation, memory=10**9)
    loop = endless_loop(FedGH(), federation, engine, max(1, clients // 100))
    try:
        with Peak(lambda: [os.getpid(), *engine.pids]) as peak:
            for _ in range(rounds):
                loop.step()
    finally:
        engine.close()
    return peak.bytes


def _memory_of(clients: int, rounds: int) -> int:
    """What a population and some rounds add to a process."""
    random_images()
    before = resident([os.getpid()])
    federation = population(clients, ["cnn-5"], 20, 10, tests=10)
    loop = endless_loop(FedGH(), federation, serial_engine(FedGH(), federation), COHORT)
    for _ in range(rounds):
        loop.step()
    return resident([os.getpid()]) - before
