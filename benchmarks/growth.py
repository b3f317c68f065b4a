"""Rounds of a fixed cohort in ever larger populations: what grows, and what does not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from benchmarks import registered
from benchmarks.memory import Peak, call_in_new_process, resident
from benchmarks.population import endless_loop, pool_engine, population, random_images, serial_engine
from benchmarks.rows import Row
from benchmarks.trials import Spread, time_alternately
from potluck.methods.fedgh import FedGH

COHORT = 10


def measure(*, quick: bool = False) -> Iterator[Row]:
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
    yield from registered.measure(*([100, 1000], 1, 2) if quick else ([1000, 10_000, 100_000], 5))
    for size in sizes:
        used = call_in_new_process(_memory_of, size, 2 if quick else 3) / 1e6
        yield Row("growth, cohort of 10", f"{size:,} clients, memory", Spread.of([used]), "MB")
    clients, rounds = (500, 2) if quick else (10_000, 6)
    peak = call_in_new_process(peak_memory, clients, rounds) / 1e6
    what = f"{clients:,} × cnn-5, 1 % per round, pool of 2, 1 GB for clients"
    yield Row("memory", what, Spread.of([peak]), "MB", 4000)


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
