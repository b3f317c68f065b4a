"""What data cost: dealing rows to clients, and normalising images batch by batch instead of once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.rows import Row
from benchmarks.trials import Spread, ratio, time_alternately
from potluck.core.samples import Samples
from potluck.core.training import cross_entropy_loss
from potluck.data import Data, partition
from potluck.data.dataset import Normalise
from potluck.models import build_model

RULES = ("iid", "dirichlet:0.1", "pathological:2")


def measure(*, quick: bool = False) -> Iterator[Row]:
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
