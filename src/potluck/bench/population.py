"""Populations of any size on random images of CIFAR's shape: what the benchmark trains."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from potluck.core.model import ClientModel
from potluck.core.random import generator, seeded
from potluck.core.samples import Samples
from potluck.core.training import Training
from potluck.data.transforms import Normalise
from potluck.federation import Builder, Federation, Participant, assemble
from potluck.models import build_model

SHAPE, CLASSES, IMAGES = (3, 32, 32), 10, 20_000


def random_images(count: int = IMAGES) -> Samples:
    """Random pixels and labels, held as bytes as image data are."""
    rng = generator("bench", count)
    x = torch.randint(0, 256, (count, *SHAPE), generator=rng, dtype=torch.uint8)
    return Samples(x, torch.randint(0, CLASSES, (count,), generator=rng), None, Normalise())


def population(
    clients: int, models: Sequence[str], samples: int, training: Training, *, tests: int = 0
) -> Federation:
    """Clients that take turns with the models, each with rows of one common array."""
    images = random_images()
    builders = {name: _builder(name) for name in models}
    return assemble(
        [
            Participant(
                f"client-{index}",
                name := models[index % len(models)],
                _own(builders[name], index),
                images.select(_rows(index, samples)),
                images.select(_rows(index + clients, tests)),
            )
            for index in range(clients)
        ],
        num_classes=CLASSES,
        input_shape=SHAPE,
        training=training,
        seed=0,
        builders=builders,
        label="random images",
    )


def _builder(name: str) -> Builder:
    return lambda: build_model(name, SHAPE, CLASSES)


def _own(build: Builder, index: int) -> Builder:
    def start() -> ClientModel:
        with seeded("bench", index):
            return build()

    return start


def _rows(index: int, count: int) -> torch.Tensor:
    return (torch.arange(count) + index * count) % IMAGES
