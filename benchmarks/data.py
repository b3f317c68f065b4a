"""How fast data open, how fast they are dealt, and whether to normalise per batch or per client.

    python benchmarks/data.py --root ~/.cache/potluck

Needs CIFAR-10 below the root (`potluck data prepare cifar10`). One torch thread.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from potluck.core.samples import Samples
from potluck.data import Data, load_data, partition
from potluck.models import build_model


def best(action: Callable[[], object], times: int = 5) -> float:
    """The shortest of several runs, in milliseconds."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return min(found) * 1e3


def opening(root: Path) -> None:
    for copy in (root / ".potluck").glob("cifar10-*"):
        shutil.rmtree(copy)
    print(f"open cifar10, first time: {best(lambda: load_data('cifar10', root), 1):8.1f} ms")
    print(f"open cifar10, afterwards: {best(lambda: load_data('cifar10', root)):8.1f} ms")


def dealing(data: Data) -> None:
    for rule in (
        "iid",
        "dirichlet:0.1",
        "dirichlet:0.1,capped=false",
        "pathological:2",
        "pathological:2,rule=pfllib",
    ):
        print(
            f"50,000 rows to 100 clients, {rule:28} {best(lambda rule=rule: partition(data, rule, 100)):6.1f} ms"
        )


def normalising(data: Data, rows: int = 5000, rounds: int = 15) -> None:
    """Both ways in turn within every round, so that a busy machine slows both alike; medians over the rounds."""
    view = data.view(
        torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:rows].sort().values
    )
    ready = Samples(*view.take(slice(None)))
    for batch, steps in ((10, 40), (64, 15)):
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(1)).split(batch)[:steps]
        feeds, trains = [], []
        for _ in range(rounds):
            feeds.append([best(partial(feed, samples, order), 1) / steps for samples in (view, ready)])
            trains.append([best(partial(train, samples, order), 1) / steps for samples in (view, ready)])
        fed, trained = np.array(feeds), np.array(trains)
        extra = (fed[:, 0] - fed[:, 1]) / trained[:, 1] * 100
        ratio = trained[:, 0] / trained[:, 1]
        low, middle, high = np.quantile(ratio, [0.25, 0.5, 0.75])
        print(
            f"CNN-1, batch {batch}: a batch takes {np.median(fed[:, 0]):.3f} ms normalised on the fly, "
            f"{np.median(fed[:, 1]):.3f} ms ready-made; the difference is {np.median(extra):.1f} % of a step "
            f"(quartiles {np.quantile(extra, 0.25):.1f} to {np.quantile(extra, 0.75):.1f}); "
            f"whole steps, on the fly / ready-made: {middle:.2f} (quartiles {low:.2f} to {high:.2f})"
        )


def feed(samples: Samples, order: tuple[torch.Tensor, ...]) -> None:
    for rows in order:
        samples.take(rows)


def train(samples: Samples, order: tuple[torch.Tensor, ...]) -> None:
    model = build_model("cnn-1", (3, 32, 32), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for rows in order:
        x, y = samples.take(rows)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    root = parser.parse_args().root
    torch.set_num_threads(1)
    opening(root)
    data = load_data("cifar10", root)
    dealing(data)
    normalising(data)


if __name__ == "__main__":
    main()
