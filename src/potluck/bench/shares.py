"""Where a round's time goes besides training."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from potluck.bench.population import CNNS, AnyMethod, endless, population, serial_engine
from potluck.bench.rows import Row
from potluck.bench.trials import Spread
from potluck.codec import decode, encode
from potluck.core.callback import Callback
from potluck.core.client import Client
from potluck.core.loop import Loop
from potluck.core.method import Update
from potluck.core.payload import Payload
from potluck.core.task import ClientInfo
from potluck.core.worker import Worker
from potluck.engines.memory import SpillFolder
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedgh import FedGH

GOAL = 5.0


class Postman(Callback):
    """Writes and reads every message, as an engine with a wire does, and adds up the time."""

    def __init__(self, spent: dict[str, float]) -> None:
        self._spent = spent

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        """A download."""
        self._there_and_back(message)

    def on_update(self, update: Update[Any], round_number: int) -> None:
        """An upload."""
        self._there_and_back(update.payload)

    def _there_and_back(self, payload: Payload) -> None:
        started = time.process_time()
        decode(type(payload), encode(payload))
        self._spent["payload codec"] += time.process_time() - started


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Processor time of each part as a share of a round: cnn-1 … cnn-5, five epochs in batches of 10."""
    for method in (FedGH(), FedAvg()):
        rounds = _shares(method, rounds=1 if quick else 3, samples=20 if quick else 120)
        for label in rounds[0]:
            if not any(share[label] for share in rounds):
                continue
            values = [100 * share[label] for share in rounds]
            yield Row("share of a round", f"{method.name}: {label}", Spread.of(values), "%", GOAL)


def _shares(method: AnyMethod, rounds: int, samples: int) -> list[dict[str, float]]:
    federation = population(10, CNNS, samples, 10, tests=samples // 4, epochs=5)
    engine, folder, spent = serial_engine(method, federation), SpillFolder(), defaultdict[str, float](float)
    engine.worker.residents.limit(folder, None, at_once=True)
    loop = endless(method, federation, engine, 10)
    loop.callbacks = [Postman(spent)]
    places: dict[str, tuple[Any, str]] = {
        "evaluation": (Worker, "_test"),
        "class means": (Client, "class_means"),
        "storing clients": (SpillFolder, "save"),
        "broadcast": (Loop, "_broadcast"),
        "checks and server": (Loop, "_learn"),
    }
    found = []
    try:
        with ExitStack() as stack:
            for label, (owner, name) in places.items():
                stack.enter_context(_timed(owner, name, spent, label))
            loop.step()
            for _ in range(rounds):
                spent.clear()
                started = time.process_time()
                loop.step()
                total = time.process_time() - started
                found.append({label: spent[label] / total for label in [*places, "payload codec"]})
    finally:
        folder.remove()
        engine.close()
    return found


@contextmanager
def _timed(owner: Any, name: str, spent: dict[str, float], label: str) -> Iterator[None]:
    """Add up the time of every call of a method while the block runs."""
    original: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any, **options: Any) -> Any:
        started = time.process_time()
        try:
            return original(*args, **options)
        finally:
            spent[label] += time.process_time() - started

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)
