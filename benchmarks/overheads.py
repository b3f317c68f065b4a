"""Measure what is not training: start of a run, preparing data, and the parts of a round."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.population import CNNS, AnyMethod, endless_loop, population, serial_engine
from benchmarks.results import Row, Spread, patched_attribute, ratio, time_alternately
from potluck.core.client import Client
from potluck.core.method import Update
from potluck.core.payload import Payload
from potluck.core.samples import Samples
from potluck.core.task import ClientInfo
from potluck.core.training import cross_entropy_loss
from potluck.data import Data, partition
from potluck.data.dataset import Normalise
from potluck.loop.callbacks import Callback
from potluck.loop.server import Server
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedgh import FedGH
from potluck.models import build_model
from potluck.runs.checkpointer import Checkpointer
from potluck.runs.generations import CheckpointStore
from potluck.runs.writer import RunWriter
from potluck.wire import decode, encode
from potluck.worker.memory import SpillFolder
from potluck.worker.worker import Worker

START_PART = "a short run"
RUN = ("-m", "potluck", "run", "fedgh", "--rounds", "1", "--clients", "4")


def measure_start(*, quick: bool = False) -> Iterator[Row]:
    """Processor seconds of a command and all its processes, beside those of a Python that only imports torch."""
    with TemporaryDirectory() as folder:
        actions = {
            "import torch": lambda: _call("-c", "import torch"),
            "potluck run, 4 clients, 1 round of digits": lambda: _call(*RUN, cwd=Path(folder)),
        }
        seconds = time_alternately(actions, 1 if quick else 5, clock=_children)
    torch_alone, run = seconds.values()
    for label, times in seconds.items():
        yield Row(START_PART, label, Spread.of(times), "s")
    yield Row(START_PART, "the run ÷ import torch", ratio(run, torch_alone), "×", 3.0)


def child_environment() -> dict[str, str]:
    """Return the environment of a Python elsewhere that imports what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def _call(*words: str, cwd: Path | None = None) -> None:
    subprocess.run(
        [sys.executable, *words],
        check=True,
        capture_output=True,
        cwd=cwd,
        env=child_environment(),
        timeout=300,
    )


def _children() -> float:
    """Processor time of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


RULES = ("iid", "dirichlet:0.1", "pathological:2")


def measure_data(*, quick: bool = False) -> Iterator[Row]:
    """Seconds to deal rows of CIFAR-10's size to 100 clients, and steps on raw pixels ÷ steps on ready numbers."""
    data = _pixels(10_000 if quick else 50_000)
    for rule in RULES:
        seconds = time_alternately({"deal": partial(partition, data, rule, 100)}, 3, clock=time.process_time)
        yield Row("dealing to 100 clients", f"{len(data):,} rows, {rule}", Spread.of(seconds["deal"]), "s")
    raw = data.view(torch.arange(400))
    ready = Samples(*raw.take(slice(None)))
    for batch in (10,) if quick else (10, 64):
        steps = time_alternately(
            {"raw": lambda: _train(raw, batch), "ready": lambda: _train(ready, batch)},  # noqa: B023
            2 if quick else 9,
            clock=time.process_time,
        )
        yield Row("pixels ÷ ready numbers", f"cnn-1, batch {batch}", ratio(steps["raw"], steps["ready"]))


def _pixels(rows: int) -> Data:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, 3, 32, 32), dtype=torch.uint8, generator=rng)
    y = torch.randint(0, 10, (rows,), generator=rng)
    return Data("pixels", x, y, 10, (3, 32, 32), transform=Normalise((0.5,) * 3, (0.5,) * 3))


def _train(samples: Samples, batch: int) -> None:
    model = build_model("cnn-1", (3, 32, 32), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for rows in torch.split(torch.arange(len(samples)), batch):
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy_loss(model, *samples.take(rows)))
        optimizer.step()


SHARE_GOAL = 5.0


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


def measure_shares(*, quick: bool = False) -> Iterator[Row]:
    """Processor time of each part as a share of a round: cnn-1 … cnn-5, five epochs in batches of 10."""
    for method in (FedGH(), FedAvg()):
        rounds = _shares(method, rounds=1 if quick else 3, samples=20 if quick else 120)
        for label in rounds[0]:
            if not any(share[label] for share in rounds):
                continue
            values = [100 * share[label] for share in rounds]
            yield Row("share of a round", f"{method.name}: {label}", Spread.of(values), "%", SHARE_GOAL)


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
    shares = []
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
                shares.append({label: spent[label] / total for label in PLACES})
    return shares


def _timed(original: Callable[..., Any], spent: dict[str, float], label: str) -> Callable[..., Any]:
    """A function whose calls' processor time is added up, each on its own thread."""

    def timed(*args: Any, **options: Any) -> Any:
        started = time.thread_time()
        try:
            return original(*args, **options)
        finally:
            spent[label] += time.thread_time() - started

    return timed
