"""What training clients of one architecture together gains, or loses: in one process, and in the pool's workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from benchmarks.population import SHAPE, endless_loop, pool_engine, population, serial_engine
from benchmarks.rows import Row
from benchmarks.trials import ratio, time_alternately
from potluck.engines.vectorized import JobBatcher, VectorizedEngine
from potluck.federation.federation import Federation
from potluck.methods.fedavg import FedAvg
from potluck.wire.jobs import Engine
from potluck.worker.worker import Worker

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


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Client by client ÷ vectorized. No goal: it is for small networks, and asked for."""
    for name, clients, shape in CASES[:1] if quick else CASES:
        federation = population(clients, [name], 100, 10, epochs=1 if quick else 5, shape=shape)
        what = f"{clients} × {name} on {shape[1]}×{shape[2]}, batch 10"
        yield from _in_one_process(federation, what, quick)
        if (name, clients, shape) in CASES[:IN_WORKERS]:
            yield from _in_workers(federation, what, quick)


def _in_one_process(federation: Federation, what: str, quick: bool) -> Iterator[Row]:
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
    yield Row("serial ÷ vectorized", what, ratio(seconds["serial"], seconds["vectorized"]))


def _in_workers(federation: Federation, what: str, quick: bool) -> Iterator[Row]:
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
    yield Row("pool of 2 ÷ the same with stacks", what, ratio(seconds["alone"], seconds["stacks"]))
