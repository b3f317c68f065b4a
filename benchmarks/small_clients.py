"""Measure many small clients: the configuration of pfl-research's public CIFAR-10 benchmark, on random images.

A cohort of 50 clients with 50 samples each, one epoch in batches of 10: 250 steps of a small CNN in a round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.population import CLASSES, SHAPE, endless_loop, random_images, rows_of, serial_engine
from benchmarks.results import Row, Spread, ratio, time_alternately
from potluck.core.model import ClientModel
from potluck.core.random import seeded
from potluck.core.training import Training
from potluck.engines.vectorized import JobBatcher, VectorizedEngine
from potluck.federation.federation import DataFacts, Federation, Member, assemble
from potluck.methods.fedavg import FedAvg
from potluck.wire.jobs import Engine
from potluck.worker.worker import Worker

COHORT, SAMPLES, BATCH, LR = 50, 50, 10, 0.1
PART = "50 clients × 50 images, 250 steps"


class SimpleCNN(ClientModel):
    """Two unpadded 3×3 convolutions of 32 and 64 filters, a pooling, a hidden layer of 128, and dropout."""

    feature_dim = 128

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc = nn.Linear(64 * 14 * 14, self.feature_dim)
        self.drop1, self.drop2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.head = nn.Linear(self.feature_dim, 10)

    def features(self, x: Tensor) -> Tensor:
        """The hidden layer."""
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        hidden: Tensor = self.drop2(F.relu(self.fc(self.drop1(x).flatten(1))))
        return hidden


def cohort(clients: int = COHORT, samples: int = SAMPLES) -> Federation:
    """Clients with rows of random images of CIFAR's shape."""
    images = random_images()
    with seeded("bench", "simple cnn"):
        model = SimpleCNN()
    return assemble(
        [
            Member(model, images.select(rows_of(index, samples)), architecture="simple-cnn")
            for index in range(clients)
        ],
        DataFacts(num_classes=CLASSES, input_shape=SHAPE, label="random images"),
        training=Training(epochs=1, batch_size=BATCH, lr=LR),
        seed=0,
        builders={"simple-cnn": SimpleCNN},
    )


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Processor seconds of a round of FedAvg, client by client and as a stack, and their ratio."""
    clients = 4 if quick else COHORT
    federation, method = cohort(clients), FedAvg()
    engines: dict[str, Engine] = {
        "one by one": serial_engine(method, federation),
        "stacked": VectorizedEngine(Worker(method, federation.client), JobBatcher(federation.task)),
    }
    loops = {label: endless_loop(method, federation, engine, clients) for label, engine in engines.items()}
    actions = {label: loop.step for label, loop in loops.items()}
    seconds = time_alternately(actions, 2 if quick else 5, clock=time.process_time)
    for label, times in seconds.items():
        yield Row(PART, f"a round, {label}", Spread.of(times), "s")
    yield Row(PART, "one by one ÷ stacked", ratio(seconds["one by one"], seconds["stacked"]))
