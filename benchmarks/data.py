"""How fast data open, how fast they are dealt, and whether to normalise per batch or per client.

    python benchmarks/data.py --root ~/.cache/potluck

Needs CIFAR-10 below the root (`potluck data prepare cifar10`). Best of five, one torch thread.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path

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


def normalising(data: Data, rows: int = 5000) -> None:
    view = data.view(
        torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:rows].sort().values
    )
    ready = Samples(*view.take(slice(None)))
    print(f"normalise {rows:,} rows at once: {best(lambda: view.take(slice(None))):.1f} ms")
    for batch, steps in ((10, 100), (64, 40)):
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(1)).split(batch)[:steps]
        for name, samples in (("per batch", view), ("once per client", ready)):
            feed = best(lambda samples=samples, order=order: [samples.take(rows) for rows in order]) / steps
            step = best(lambda samples=samples, order=order: train(samples, order)) / steps
            print(f"CNN-1, batch {batch}, {name:15}: {feed:6.3f} ms of {step:6.2f} ms per step")


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
