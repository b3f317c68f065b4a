"""What training clients of one architecture together gains, or loses."""

from __future__ import annotations

import time
from collections.abc import Iterator

from potluck.bench.population import SHAPE, endless, population, serial_engine
from potluck.bench.rows import Row
from potluck.bench.trials import in_turns, ratio
from potluck.engines.vectorized import Teams, VectorizedEngine
from potluck.loop.jobs import Engine
from potluck.loop.worker import Worker
from potluck.methods.fedavg import FedAvg

TINY = (1, 8, 8)
CASES = (
    ("small-mlp", 50, TINY),
    ("small-cnn", 50, TINY),
    ("small-res", 50, TINY),
    ("lenet", 20, SHAPE),
    ("cnn-5", 10, SHAPE),
)


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Serial engine ÷ vectorized clients, in processor time. No goal: it is for small networks, and asked for."""
    for name, clients, shape in CASES[:1] if quick else CASES:
        federation = population(clients, [name], 100, 10, epochs=1 if quick else 5, shape=shape)
        vectorized = VectorizedEngine(Worker(FedAvg(), federation.client), Teams(federation.task))
        engines: dict[str, Engine] = {"serial": serial_engine(FedAvg(), federation), "vectorized": vectorized}
        actions = {
            label: endless(FedAvg(), federation, engine, clients).step for label, engine in engines.items()
        }
        seconds = in_turns(actions, 2 if quick else 5, clock=time.process_time)
        spread = ratio(seconds["serial"], seconds["vectorized"])
        yield Row("serial ÷ vectorized", f"{clients} × {name} on {shape[1]}×{shape[2]}, batch 10", spread)
