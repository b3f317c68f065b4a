"""Measure what two workers, stacked training and channels-last memory gain or lose."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.population import CNNS, SHAPE, AnyMethod, endless_loop, pool_engine, population, serial_engine
from benchmarks.results import Row, ratio, time_alternately
from potluck.engines.pool import PoolEngine
from potluck.engines.vectorized import JobBatcher, VectorizedEngine
from potluck.federation.federation import Federation
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedgh import FedGH
from potluck.methods.standalone import Standalone
from potluck.wire.jobs import Engine
from potluck.worker.worker import Worker

POOL_GOAL = 1.7


def measure_pool(*, quick: bool = False) -> Iterator[Row]:
    """Seconds of a round on the serial engine ÷ on the pool, round by round in turns."""
    yield from _speed_up("FedGH, 8 × cnn-3 alike", ["cnn-3"], FedGH(), quick, POOL_GOAL)
    if not quick:
        yield from _speed_up("FedAvg, 8 × cnn-3 alike", ["cnn-3"], FedAvg(), quick, POOL_GOAL)
        yield from _speed_up("FedGH, 2 × cnn-1 … cnn-5", CNNS, FedGH(), quick)


def _speed_up(
    label: str, models: Sequence[str], method: AnyMethod, quick: bool, goal: float | None = None
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
    yield Row(part, f"{label}, by the clock", ratio(seconds["serial"], seconds["pool"]), "×", goal, True)
    yield Row(
        part, f"{label}, processor time", ratio(longest["serial"][1:], longest["pool"][1:]), "×", goal, True
    )


def worker_seconds(pool: PoolEngine) -> list[float]:
    """Processor time that each worker has used so far."""
    return [int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9 for pid in pool.pids]


TINY = (1, 8, 8)
CASES = (
    ("small-mlp", 50, TINY),
    ("small-cnn", 50, TINY),
    ("small-res", 50, TINY),
    ("lenet", 20, SHAPE),
    ("cnn-5", 10, SHAPE),
)
IN_WORKERS = 2
"""How many of the cases are measured in the pool too: those in which stacks pay most."""


def measure_vectorized(*, quick: bool = False) -> Iterator[Row]:
    """Client by client ÷ vectorized. No goal: it is for small networks, and asked for."""
    for name, clients, shape in CASES[:1] if quick else CASES:
        federation = population(clients, [name], 100, 10, epochs=1 if quick else 5, shape=shape)
        label = f"{clients} × {name} on {shape[1]}×{shape[2]}, batch 10"
        yield from _in_one_process(federation, label, quick)
        if (name, clients, shape) in CASES[:IN_WORKERS]:
            yield from _in_workers(federation, label, quick)


def _in_one_process(federation: Federation, setting: str, quick: bool) -> Iterator[Row]:
    """In processor time."""
    engines: dict[str, Engine] = {
        "serial": serial_engine(FedAvg(), federation),
        "vectorized": VectorizedEngine(Worker(FedAvg(), federation.client), JobBatcher(federation.task)),
    }
    clients = len(federation.members)
    actions = {
        label: endless_loop(FedAvg(), federation, engine, clients).step for label, engine in engines.items()
    }
    seconds = time_alternately(actions, 2 if quick else 5, clock=time.process_time)
    yield Row("serial ÷ vectorized", setting, ratio(seconds["serial"], seconds["vectorized"]))


def _in_workers(federation: Federation, setting: str, quick: bool) -> Iterator[Row]:
    """By the clock."""
    method, clients = FedAvg(), len(federation.members)
    with (
        closing(pool_engine(method, federation)) as alone,
        closing(pool_engine(method, federation, batcher=JobBatcher(federation.task))) as stacks,
    ):
        actions = {
            label: endless_loop(method, federation, engine, clients).step
            for label, engine in (("alone", alone), ("stacks", stacks))
        }
        seconds = time_alternately(actions, 2 if quick else 5)
    yield Row("pool of 2 ÷ the same with stacks", setting, ratio(seconds["alone"], seconds["stacks"]))


MODELS = (*CNNS, "resnet18", "mobilenet-v2")


def measure_layout(*, quick: bool = False) -> Iterator[Row]:
    """Plain ÷ channels last, in processor time. No goal: it is asked for, and can be measured per network."""
    for name in ("cnn-5",) if quick else MODELS:
        for batch in (10,) if quick else (10, 64):
            built = population(1, [name], 2 * batch if quick else 128, batch)
            plain, last = built.with_channels_last(()), built.with_channels_last((name,))
            actions = {
                label: endless_loop(Standalone(), layout, serial_engine(Standalone(), layout), 1).step
                for label, layout in (("plain", plain), ("last", last))
            }
            seconds = time_alternately(actions, 2 if quick else 5, clock=time.process_time)
            spread = ratio(seconds["plain"], seconds["last"])
            yield Row("plain ÷ channels last", f"{name}, batch {batch}", spread)
