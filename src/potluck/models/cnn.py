"""CNN-1 … CNN-5: the five convolutional networks of FedGH and pFedAFM."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel
from potluck.models.dense import Dense
from potluck.models.entry import InputSpec, ModelEntry


class CNN(ClientModel):
    """Two unpadded 5×5 convolutions and two hidden layers; the last, of 500, is the representation.

    The papers print 3.81 MB for CNN-4, which no layer width of their table gives; its table widths
    (hidden layer of 800) are kept, at 4.05 MiB.
    """

    def __init__(
        self, request: InputSpec, conv1: int, conv2: int, hidden: int, feature_dim: int = 500
    ) -> None:
        super().__init__()
        channels, height, width = request.shape
        self.conv1 = nn.Conv2d(channels, conv1, 5)
        self.conv2 = nn.Conv2d(conv1, conv2, 5)
        self.fc1 = Dense(conv2 * _after(height) * _after(width), hidden)
        self.fc2 = Dense(hidden, feature_dim)
        self.head = nn.Linear(feature_dim, request.classes)
        self.feature_dim = feature_dim

    def features(self, x: Tensor) -> Tensor:
        """Return the output of the second hidden layer."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.relu(self.fc2(x))


def _after(side: int) -> int:
    """Return the side of the map that is left after both convolutions and poolings."""
    return ((side - 4) // 2 - 4) // 2


_WIDTHS = {1: (16, 32, 2000), 2: (16, 16, 2000), 3: (16, 32, 1000), 4: (16, 32, 800), 5: (16, 32, 500)}

MODELS = {
    f"cnn-{number}": ModelEntry(
        summary=f"FedGH's CNN-{number}: 5×5 convolutions {conv1}, {conv2}, hidden layers {hidden}, 500",
        build=partial(CNN, conv1=conv1, conv2=conv2, hidden=hidden),
        min_side=16,
        channels_last=True,
    )
    for number, (conv1, conv2, hidden) in _WIDTHS.items()
}
