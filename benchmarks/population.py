"""Build populations of any size on random images of CIFAR's shape, and engines and loops to train them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.method import Method
from potluck.core.model import ClientModel
from potluck.core.random import generator, seeded
from potluck.core.samples import Samples
from potluck.core.training import Training
from potluck.data.dataset import Normalise
from potluck.engines.pool import PoolEngine
from potluck.engines.serial import SerialEngine
from potluck.engines.vectorized import JobBatcher
from potluck.federation.federation import Builder, DataFacts, Federation, Member, assemble
from potluck.loop.loop import Loop
from potluck.loop.schedule import Evaluation, Schedule
from potluck.models import build_model
from potluck.wire.jobs import Engine
from potluck.worker.worker import Worker

AnyMethod = Method[Any, Any, Any]
SHAPE, CLASSES, IMAGES = (3, 32, 32), 10, 10_000
CNNS = ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5")


class LeNet(ClientModel):
    """LeNet-5 on colour images, 62,006 parameters: small enough for overheads to show."""

    feature_dim = 84

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(400, 120), nn.Linear(120, 84)
        self.head = nn.Linear(84, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """The second hidden layer."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = torch.flatten(F.max_pool2d(F.relu(self.conv2(x)), 2), 1)
        return F.relu(self.fc2(F.relu(self.fc1(x))))


def builder(name: str, shape: tuple[int, ...]) -> Builder:
    """LeNet, or a network of the zoo for images of this shape."""
    return LeNet if name == "lenet" else functools.partial(build_model, name, shape, CLASSES)


@functools.cache
def random_images(shape: tuple[int, ...] = SHAPE) -> Samples:
    """Random pixels and labels, held as bytes as image data are."""
    rng = generator("bench", *shape)
    x = torch.randint(0, 256, (IMAGES, *shape), generator=rng, dtype=torch.uint8)
    return Samples(x, torch.randint(0, CLASSES, (IMAGES,), generator=rng), None, Normalise())


def population(
    clients: int,
    models: Sequence[str],
    samples: int,
    batch: int,
    *,
    tests: int = 0,
    epochs: int = 1,
    shape: tuple[int, ...] = SHAPE,
    shared: str | None = None,
    public: int = 0,
) -> Federation:
    """Clients that take turns with the models, each with rows of one common array; for some methods more is shared."""
    images = random_images(shape)
    return assemble(
        [
            Member(
                functools.partial(_seeded_build, builder(models[index % len(models)], shape), index),
                images.select(rows_of(index, samples)),
                images.select(rows_of(index + clients, tests)),
                f"client-{index}",
                architecture=models[index % len(models)],
            )
            for index in range(clients)
        ],
        DataFacts(num_classes=CLASSES, input_shape=shape, label="random images"),
        training=Training(epochs=epochs, batch_size=batch, lr=0.01),
        seed=0,
        builders={name: builder(name, shape) for name in models},
        shared_builder=None if shared is None else builder(shared, shape),
        public=images.select(rows_of(IMAGES // 2, public)) if public else None,
    )


def _seeded_build(build: Builder, index: int) -> ClientModel:
    with seeded("bench", index):
        return build()


def rows_of(index: int, count: int) -> Tensor:
    """Which of the images a client has."""
    return (torch.arange(count) + index * count) % IMAGES


def endless_loop(method: AnyMethod, federation: Federation, engine: Engine, cohort: int) -> Loop:
    """A loop to be stepped as often as one likes."""
    share = cohort / len(federation.members)
    return Loop(method, federation.task, engine, Schedule(1_000_000, participation=share), Evaluation())


def serial_engine(method: AnyMethod, federation: Federation) -> SerialEngine:
    """The reference."""
    return SerialEngine(Worker(method, federation.client))


def pool_engine(
    method: AnyMethod, federation: Federation, memory: int | None = None, batcher: JobBatcher | None = None
) -> PoolEngine:
    """Two workers."""
    worker = Worker(method, federation.client)
    return PoolEngine(lambda: worker, 2, memory, cost=federation.cost, batcher=batcher)
