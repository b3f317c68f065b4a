"""A tiny federation fit for the needs that a method declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core.method import Method, Need
from potluck.core.model import ClientModel
from potluck.core.random import generator, seeded
from potluck.core.training import Training
from potluck.federation.federation import Federation, Member, Pair
from potluck.federation.own import federate

CLASSES, SIDE, FEATURES = 3, 8, 8


class _Block(nn.Module):
    """A residual block whose tensors slice by width and nest by depth."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """x + f(x)."""
        return torch.relu(x + self.norm(self.conv(x)))


class CheckNet(ClientModel):
    """A small convolutional network with BatchNorm, stages, and any width and depth."""

    def __init__(self, width: int = FEATURES, depth: int = 1, full_width: int = FEATURES) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU())
        self.layer1 = nn.Sequential(*(_Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, CLASSES)
        self.feature_dim = width
        self.width_rate = width / full_width

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """Stem and residual blocks."""
        return self.stem, self.layer1

    def pool(self, x: Tensor) -> Tensor:
        """Mean over positions."""
        return x.mean((2, 3))


def small_federation(
    method: Method[Any, Any, Any],
    *,
    clients: int = 3,
    samples: int = 8,
    classes: Sequence[Sequence[int]] = ((0, 1, 2), (0, 1), (1, 2)),
    training: Training | None = None,
    dtype: torch.dtype = torch.float64,
) -> Federation:
    """A few clients with different networks and classes, fit for the needs that the method declares."""
    needs = method.requires()
    members = []
    for index in range(clients):
        with seeded("check_method", index):
            model = _model_for(needs, index)
        held = classes[index % len(classes)]
        members.append(Member(model.to(dtype), _data(samples, held, index), _data(6, held, 100 + index)))
    with seeded("check_method", "shared"):
        shared = CheckNet(depth=1).to(dtype)
    return federate(
        members,
        training=training or Training(epochs=1, batch_size=4, lr=0.05),
        num_classes=CLASSES,
        shared_model=shared,
        shared_test=_data(6, range(CLASSES), 200),
        public=_data(8, range(CLASSES), 300),
        seed=7,
    )


def _model_for(needs: frozenset[Need], index: int) -> CheckNet:
    if Need.SAME_ARCHITECTURE in needs:
        return CheckNet()
    if Need.NESTED_WIDTH in needs:
        return CheckNet(width=FEATURES if index % 2 == 0 else FEATURES // 2)
    return CheckNet(depth=1 + index % 2)


def _data(count: int, held: Sequence[int], seed: int) -> Pair:
    labels = torch.tensor([held[n % len(held)] for n in range(count)])
    noise = torch.randn(count, 1, SIDE, SIDE, generator=generator("check_method", seed), dtype=torch.float64)
    return noise + labels[:, None, None, None], labels
