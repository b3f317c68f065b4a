"""Compare Potluck with pfl-research on its public CIFAR-10 configuration: `make bench-peers`, in its own environment.

Both train 50 clients with 50 random images each for one epoch in batches of 10, the same small CNN, on one thread, in
one process and in turns; a figure is the processor time of a round. pfl-research tests in its first round only, which
is not counted.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn import functional as F

from benchmarks.population import endless_loop, serial_engine
from benchmarks.results import Row, Spread, machine, ratio, store_rows
from benchmarks.small_clients import BATCH, COHORT, LR, SimpleCNN, cohort
from potluck.core.random import one_thread
from potluck.engines.vectorized import JobBatcher, VectorizedEngine
from potluck.federation.federation import Federation
from potluck.methods.fedavg import FedAvg
from potluck.wire.jobs import Engine
from potluck.worker.memory import retain_freed_memory
from potluck.worker.worker import Worker

TRIALS, PEER = 5, "pfl-research"


class PeerCNN(SimpleCNN):
    """The same network with what pfl-research asks of a model."""

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        """Of a batch."""
        self.train(not is_eval)
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor, is_eval: bool = True) -> dict[str, Any]:
        """Of a batch, where it is tested."""
        return {"loss": Weighted(float(self.loss(x, y, is_eval).detach()) * len(y), len(y))}


class Turns(TrainingProcessCallback):  # type: ignore[misc]  # the peer is not where types are checked
    """After every round of the peer, rounds of ours; the first of each warms up and does not count."""

    def __init__(self, actions: Mapping[str, Callable[[], None]]) -> None:
        self.actions = actions
        self.seconds: dict[str, list[float]] = {PEER: [], **{label: [] for label in actions}}
        self.rounds, self.began = 0, time.process_time()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        """The peer's round has just ended."""
        seconds = {PEER: time.process_time() - self.began}
        for label, action in self.actions.items():
            started = time.process_time()
            action()
            seconds[label] = time.process_time() - started
        for label in seconds if self.rounds else ():
            self.seconds[label].append(seconds[label])
        self.rounds, self.began = self.rounds + 1, time.process_time()
        return False, Metrics()


def peer_rounds(federation: Federation, turns: Turns, trials: int) -> None:
    """Rounds of pfl-research with `turns` in between."""
    data = {str(index): member.train.take(slice(None)) for index, member in enumerate(federation.members)}
    users = itertools.cycle(data)
    dataset = FederatedDataset(lambda name: Dataset(data[name], user_id=name), lambda: next(users))
    network = PeerCNN()
    FederatedAveraging().run(
        NNAlgorithmParams(1 + trials, 1_000_000, len(data), 0),
        SimulatedBackend(dataset, dataset, [WeightByDatapoints()]),
        PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0)),
        NNTrainHyperParams(BATCH, 1, LR),
        NNEvalHyperParams(None),
        [turns],
    )


def measure(clients: int, trials: int) -> list[Row]:
    """Rounds of the peer and of ours in turns."""
    federation, method = cohort(clients), FedAvg()
    engines: dict[str, Engine] = {
        "Potluck, one by one": serial_engine(method, federation),
        "Potluck, channels last": serial_engine(method, federation.with_channels_last(("simple-cnn",))),
        "Potluck, stacked": VectorizedEngine(Worker(method, federation.client), JobBatcher(federation.task)),
    }
    turns = Turns(
        {label: endless_loop(method, federation, engine, clients).step for label, engine in engines.items()}
    )
    with one_thread():
        peer_rounds(federation, turns, trials)
    part = f"{clients} clients × 50 images beside {PEER}"
    rows = [Row(part, f"a round, {label}", Spread.of(times), "s") for label, times in turns.seconds.items()]
    for label in engines:
        ratios = ratio(turns.seconds[PEER], turns.seconds[label])
        rows.append(Row(part, f"{PEER} ÷ {label}", ratios, goal=1.0, at_least=True))
    return rows


def main() -> None:
    """Show the table's rows, and keep them where told."""
    words = argparse.ArgumentParser(description=main.__doc__)
    words.add_argument(
        "--clients", type=int, default=COHORT, help="another size of the cohort, for a quick look"
    )
    words.add_argument("--trials", type=int, default=TRIALS, help="rounds that count")
    words.add_argument("--store", type=Path, help="a table in which the rows of this part are replaced")
    options = words.parse_args()
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    retain_freed_memory()
    print(machine(), flush=True)
    rows = measure(options.clients, options.trials)
    for row in rows:
        print(row)
    if options.store is not None:
        store_rows(options.store, rows)


if __name__ == "__main__":
    main()
