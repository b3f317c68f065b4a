"""What two workers gain over one process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.population import CNNS, AnyMethod, endless_loop, pool_engine, population, serial_engine
from benchmarks.rows import Row
from benchmarks.trials import ratio, time_alternately
from potluck.engines.pool import PoolEngine
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedgh import FedGH

GOAL = 1.7


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Seconds of a round on the serial engine ÷ on the pool, round by round in turns."""
    yield from _speed_up("FedGH, 8 × cnn-3 alike", ["cnn-3"], FedGH(), quick, GOAL)
    if not quick:
        yield from _speed_up("FedAvg, 8 × cnn-3 alike", ["cnn-3"], FedAvg(), quick, GOAL)
        yield from _speed_up("FedGH, 2 × cnn-1 … cnn-5", CNNS, FedGH(), quick)


def _speed_up(
    what: str, models: Sequence[str], method: AnyMethod, quick: bool, goal: float | None = None
) -> Iterator[Row]:
    """By the clock, and in processor time along the longest way: parent, then the busier worker.

    The second does not depend on what else runs on the machine; it shows what is lost to messages, storing
    and uneven shares.
    """
    clients = 4 if quick else 2 * len(CNNS) if len(models) > 1 else 8
    federation = population(clients, models, 20 if quick else 200, 10, tests=20)
    serial, pool = serial_engine(method, federation), pool_engine(method, federation)
    alone, shared = (endless_loop(method, federation, engine, clients) for engine in (serial, pool))
    longest: dict[str, list[float]] = {"serial": [], "pool": []}

    def step_alone() -> None:
        started = time.process_time()
        alone.step()
        longest["serial"].append(time.process_time() - started)

    def step_shared() -> None:
        started, before = time.process_time(), worker_seconds(pool)
        shared.step()
        busiest = max(now - then for now, then in zip(worker_seconds(pool), before, strict=True))
        longest["pool"].append(time.process_time() - started + busiest)

    try:
        seconds = time_alternately({"serial": step_alone, "pool": step_shared}, 2 if quick else 7)
    finally:
        pool.close()
        serial.close()
    part = "serial ÷ pool of 2"
    yield Row(part, f"{what}, by the clock", ratio(seconds["serial"], seconds["pool"]), "×", goal, True)
    yield Row(
        part, f"{what}, processor time", ratio(longest["serial"][1:], longest["pool"][1:]), "×", goal, True
    )


def worker_seconds(pool: PoolEngine) -> list[float]:
    """Processor time that each worker has used so far."""
    return [int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9 for pid in pool.pids]
