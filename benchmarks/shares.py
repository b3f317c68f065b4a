"""Where a round's time goes besides training."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.population import CNNS, AnyMethod, endless_loop, population, serial_engine
from benchmarks.rows import Row
from benchmarks.trials import Spread, patched_attribute
from potluck.core.client import Client
from potluck.core.method import Update
from potluck.core.payload import Payload
from potluck.core.task import ClientInfo
from potluck.loop.callbacks import Callback
from potluck.loop.server import Server
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedgh import FedGH
from potluck.runs.checkpointer import Checkpointer
from potluck.runs.generations import CheckpointStore
from potluck.runs.writer import RunWriter
from potluck.wire import decode, encode
from potluck.worker.memory import SpillFolder
from potluck.worker.worker import Worker

GOAL = 5.0


class WireRoundTrip(Callback):
    """Writes and reads every message, as an engine with a wire does."""

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        """A download."""
        self.there_and_back(message)

    def on_update(self, update: Update[Any], round_number: int) -> None:
        """An upload."""
        self.there_and_back(update.payload)

    def there_and_back(self, payload: Payload) -> None:
        """To bytes and back."""
        decode(type(payload), encode(payload))


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Processor time of each part as a share of a round: cnn-1 … cnn-5, five epochs in batches of 10."""
    for method in (FedGH(), FedAvg()):
        rounds = _shares(method, rounds=1 if quick else 3, samples=20 if quick else 120)
        for label in rounds[0]:
            if not any(share[label] for share in rounds):
                continue
            values = [100 * share[label] for share in rounds]
            yield Row("share of a round", f"{method.name}: {label}", Spread.of(values), "%", GOAL)


PLACES: Mapping[str, tuple[tuple[Any, str], ...]] = {
    "evaluation": ((Worker, "_test"),),
    "class means": ((Client, "class_means"),),
    "storing clients": ((SpillFolder, "save"),),
    "broadcast": ((Server, "message"),),
    "checks and server": ((Server, "aggregate"),),
    "checkpoint": ((Checkpointer, "on_step"), (CheckpointStore, "write_state"), (CheckpointStore, "commit")),
    "payload codec": ((WireRoundTrip, "there_and_back"),),
}
"""What is timed under which name; the time of training and of everything else is the rest."""


def _shares(method: AnyMethod, rounds: int, samples: int) -> list[dict[str, float]]:
    federation = population(10, CNNS, samples, 10, tests=samples // 4, epochs=5)
    engine, spills, spent = serial_engine(method, federation), SpillFolder(), defaultdict[str, float](float)
    engine.worker.cache.set_budget(spills, None, at_once=True)
    loop = endless_loop(method, federation, engine, 10)
    found = []
    with ExitStack() as stack:
        stack.callback(engine.close)
        stack.callback(spills.remove)
        for label, places in PLACES.items():
            for owner, name in places:
                stack.enter_context(patched_attribute(owner, name, partial(_timed, spent=spent, label=label)))
        run = Path(stack.enter_context(TemporaryDirectory()))
        keeper = stack.enter_context(Checkpointer(RunWriter(run, {}), federation))
        loop.callbacks = [WireRoundTrip(), keeper]
        keeper.on_start(loop)
        for number in range(rounds + 1):
            spent.clear()
            started = time.process_time()
            loop.step()
            total = time.process_time() - started
            if number:
                found.append({label: spent[label] / total for label in PLACES})
    return found


def _timed(original: Callable[..., Any], spent: dict[str, float], label: str) -> Callable[..., Any]:
    """A function whose calls' processor time is added up, each on its own thread."""

    def timed(*args: Any, **options: Any) -> Any:
        started = time.thread_time()
        try:
            return original(*args, **options)
        finally:
            spent[label] += time.thread_time() - started

    return timed
