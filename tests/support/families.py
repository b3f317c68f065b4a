"""Tiny nested model families and populations: depth for layer-wise methods, width for sliced ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core.model import ClientModel
from potluck.core.random import seeded
from potluck.core.training import Training
from potluck.federation.federation import Federation
from potluck.federation.members import Member, federate
from support.tiny import points


class Block(nn.Module):
    """A residual layer, with batch norm where asked."""

    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.bn = nn.BatchNorm1d(width) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.bn(self.fc(x)))


class Deep(ClientModel):
    """A stem and two stages of blocks; the names of a shallow one are among a deeper one's."""

    def __init__(self, blocks: Sequence[int] = (1, 1), norm: bool = False, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, width), nn.ReLU())
        self.layer1 = nn.Sequential(*(Block(width, norm) for _ in range(blocks[0])))
        self.layer2 = nn.Sequential(*(Block(width, norm) for _ in range(blocks[1])))
        self.head = nn.Linear(width, 3)
        self.feature_dim = width

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        return self.stem, self.layer1, self.layer2


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, the last four times as wide, beside a 1×1 shortcut; static batch norm."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, hidden, 1, bias=False)
        self.conv2 = nn.Conv2d(hidden, hidden, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(hidden, track_running_stats=False)
        self.conv3 = nn.Conv2d(hidden, 4 * hidden, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, 4 * hidden, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.conv3(torch.relu(self.bn(self.conv2(torch.relu(self.conv1(x))))))
        return torch.relu(self.shortcut(x) + branch)


class Wide(ClientModel):
    """A width-nested network with a Bottleneck block; a vector of four numbers is read as a 2×2 image."""

    def __init__(self, rate: float = 1.0) -> None:
        super().__init__()
        self.width_rate = rate
        stem, hidden = math.ceil(4 * rate), math.ceil(2 * rate)
        self.stem = nn.Conv2d(1, stem, 3, padding=1)
        self.block = Bottleneck(stem, hidden)
        self.head = nn.Linear(4 * hidden, 3)
        self.feature_dim = 4 * hidden

    def features(self, x: Tensor) -> Tensor:
        maps: Tensor = self.block(torch.relu(self.stem(x.reshape(-1, 1, 2, 2))))
        return maps.mean((2, 3))


class Narrow(ClientModel):
    """Static batch norm over vectors: a batch of one has nothing to normalise with."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(4, width)
        self.bn = nn.BatchNorm1d(width, track_running_stats=False)
        self.head = nn.Linear(width, 3)
        self.feature_dim = width

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.fc(x)))


def population(
    models: Sequence[ClientModel],
    *,
    sizes: Sequence[int] = (12,),
    classes_of: Sequence[Sequence[int] | None] = (None,),
    training: Training | None = None,
    **more: Any,
) -> Federation:
    """One client per model, with blobs of the given sizes and classes (both cycling)."""
    members = []
    for index, model in enumerate(models):
        only, size = classes_of[index % len(classes_of)], sizes[index % len(sizes)]
        members.append(Member(model, points(size, 10 + index, only=only), points(9, 90 + index, only=only)))
    more.setdefault("shared_test", points(9, 1000))
    settings = training or Training(epochs=1, batch_size=4, lr=0.1)
    return federate(members, training=settings, num_classes=3, **more)


def deep(*blocks: Sequence[int], norm: bool = False, **more: Any) -> Federation:
    """A population of depth-nested networks."""
    models = []
    for index, counts in enumerate(blocks):
        with seeded("deep", index):
            models.append(Deep(counts, norm).double())
    return population(models, **more)


def wide(*rates: float, **more: Any) -> Federation:
    """A population of width-nested networks."""
    models = []
    for index, rate in enumerate(rates):
        with seeded("wide", index):
            models.append(Wide(rate).double())
    return population(models, **more)
