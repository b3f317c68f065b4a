"""Potluck beside pfl-research on its public CIFAR-10 configuration: `make bench-peers`, in an environment of its own.

Both train 50 clients with 50 random images each for one epoch in batches of 10, the same small CNN, on one thread, in
one process and in turns; a figure is the processor time of a round. pfl-research tests in its first round only, which
is not counted.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time

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
from torch.nn import functional as F

from potluck.bench.population import endless, serial_engine
from potluck.bench.rows import Row, machine
from potluck.bench.small_clients import BATCH, COHORT, LR, SimpleCNN, cohort
from potluck.bench.trials import Spread, ratio
from potluck.core.random import one_thread
from potluck.engines.vectorized import VectorizedEngine
from potluck.loop.worker import Worker, keep_freed_memory
from potluck.methods.fedavg import FedAvg

TRIALS, PEER = 5, "pfl-research"


class PeerCNN(SimpleCNN):
    """The same network with what pfl-research asks of a model."""

    def loss(self, x, y, is_eval=False):
        """Of a batch."""
        self.train(not is_eval)
        return F.cross_entropy(self(x), y)

    def metrics(self, x, y, is_eval=True):
        """Of a batch, where it is tested."""
        return {"loss": Weighted(float(self.loss(x, y, is_eval).detach()) * len(y), len(y))}


class Turns(TrainingProcessCallback):
    """After every round of the peer, rounds of ours; the first of each warms up and does not count."""

    def __init__(self, actions):
        self.actions, self.seconds = actions, {PEER: [], **{label: [] for label in actions}}
        self.rounds, self.began = 0, time.process_time()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """The peer's round has just ended."""
        found = {PEER: time.process_time() - self.began}
        for label, action in self.actions.items():
            started = time.process_time()
            action()
            found[label] = time.process_time() - started
        for label in found if self.rounds else ():
            self.seconds[label].append(found[label])
        self.rounds, self.began = self.rounds + 1, time.process_time()
        return False, Metrics()


def peer_rounds(federation, turns):
    """Rounds of pfl-research with `turns` in between."""
    data = {str(index): one.train.take(slice(None)) for index, one in enumerate(federation.members)}
    users = itertools.cycle(data)
    dataset = FederatedDataset(lambda name: Dataset(data[name], user_id=name), lambda: next(users))
    network = PeerCNN()
    FederatedAveraging().run(
        NNAlgorithmParams(1 + TRIALS, 1_000_000, len(data), 0),
        SimulatedBackend(dataset, dataset, [WeightByDatapoints()]),
        PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0)),
        NNTrainHyperParams(BATCH, 1, LR),
        NNEvalHyperParams(None),
        [turns],
    )


def main():
    """Show the table's rows; an argument is a cohort of another size, for a quick look."""
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    keep_freed_memory()
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else COHORT
    federation, method = cohort(clients), FedAvg()
    engines = {
        "Potluck, one by one": serial_engine(method, federation),
        "Potluck, channels last": serial_engine(method, federation.laid_out(("simple-cnn",))),
        "Potluck, stacked": VectorizedEngine(Worker(method, federation.client)),
    }
    turns = Turns({label: endless(method, federation, one, clients).step for label, one in engines.items()})
    print(machine())
    with one_thread():
        peer_rounds(federation, turns)
    part = f"{clients} clients × 50 images"
    for label, found in turns.seconds.items():
        print(Row(part, f"a round, {label}", Spread.of(found), "s"))
    for label in engines:
        ratios = ratio(turns.seconds[PEER], turns.seconds[label])
        print(Row(part, f"{PEER} ÷ {label}", ratios, goal=1.0, at_least=True))


if __name__ == "__main__":
    main()
