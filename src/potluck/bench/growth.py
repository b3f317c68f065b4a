"""Rounds of a fixed cohort in ever larger populations: what grows, and what does not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context

from potluck.bench.memory import Peak, resident
from potluck.bench.population import endless, pool_engine, population, random_images, serial_engine
from potluck.bench.rows import Row
from potluck.bench.trials import Spread, in_turns, ratio
from potluck.methods.fedgh import FedGH

COHORT = 10
FLAT = 1.1
"""A round of a hundredfold population may take this many times as long: it shall not grow with it."""


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Processor seconds and memory of a round at 10 to 10,000 clients, and a population that cannot fit."""
    sizes = [10, 100, 1000] if quick else [10, 100, 1000, 10_000]
    loops = {}
    for size in sizes:
        federation = population(size, ["cnn-5"], 20, 10, tests=10)
        loops[size] = endless(FedGH(), federation, serial_engine(FedGH(), federation), COHORT)
    seconds = in_turns(
        {str(size): loop.step for size, loop in loops.items()}, 2 if quick else 7, clock=time.process_time
    )
    for size in sizes:
        yield Row("growth, cohort of 10", f"{size:,} clients, a round", Spread.of(seconds[str(size)]), "s")
    loops.clear()
    yield from _registered([100, 1000] if quick else [1000, 10_000, 100_000], 2 if quick else 5)
    for size in sizes:
        used = _apart(_memory_of, size, 2 if quick else 3) / 1e6
        yield Row("growth, cohort of 10", f"{size:,} clients, memory", Spread.of([used]), "MB")
    clients, rounds = (500, 2) if quick else (10_000, 6)
    peak = _apart(crowd, clients, rounds) / 1e6
    what = f"{clients:,} × cnn-5, 1 % per round, pool of 2, 1 GB for clients"
    yield Row("memory", what, Spread.of([peak]), "MB", 4000)


def _registered(sizes: list[int], trials: int) -> Iterator[Row]:
    """A hundred of ever more registered clients with networks and images of the digits' size."""
    part, cohort = f"growth, cohort of {min(100, sizes[0])}, small-mlp on 8×8", min(100, sizes[0])
    started, loops = {}, {}
    for size in sizes:
        before = time.process_time()
        federation = population(size, ["small-mlp"], 20, 10, tests=10, shape=(1, 8, 8))
        loops[str(size)] = endless(FedGH(), federation, serial_engine(FedGH(), federation), cohort)
        started[size] = time.process_time() - before
    seconds = in_turns({name: loop.step for name, loop in loops.items()}, trials, clock=time.process_time)
    first = seconds[str(sizes[0])]
    for size in sizes:
        yield Row(part, f"{size:,} registered, start", Spread.of([started[size]]), "s")
    for size in sizes[1:]:
        what = f"{size:,} ÷ {sizes[0]:,} registered, a round"
        yield Row(part, what, ratio(seconds[str(size)], first), goal=FLAT)


def crowd(clients: int, rounds: int) -> int:
    """The most that a pool and its parent hold, of a population whose weights alone may not fit."""
    federation = population(clients, ["cnn-5"], 20, 10, tests=10)
    engine = pool_engine(FedGH(), federation, memory=10**9)
    loop = endless(FedGH(), federation, engine, max(1, clients // 100))
    try:
        with Peak(lambda: [os.getpid(), *engine.pids]) as peak:
            for _ in range(rounds):
                loop.step()
    finally:
        engine.close()
    return peak.bytes


def _memory_of(clients: int, rounds: int) -> int:
    """What a population and some rounds add to a process."""
    before = resident([os.getpid()])
    federation = population(clients, ["cnn-5"], 20, 10, tests=10)
    loop = endless(FedGH(), federation, serial_engine(FedGH(), federation), COHORT)
    for _ in range(rounds):
        loop.step()
    return resident([os.getpid()]) - before


def _apart(function: Callable[[int, int], int], clients: int, rounds: int) -> int:
    """Run it in a process of its own, so that nothing of what came before counts."""
    random_images()
    context = get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=lambda: writer.send(function(clients, rounds)))
    process.start()
    writer.close()
    result: int = reader.recv()
    process.join()
    return result
