"""The four-layer CNN of FedAvg as FedL2G's groups use it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel
from potluck.models.dense import Dense
from potluck.models.entry import InputSpec, ModelEntry


class FedAvgCNN(ClientModel):
    """Two unpadded 5×5 convolutions of 32 and 64 filters and one hidden layer of 512, the representation."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        channels, height, width = request.shape
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc1 = Dense(64 * _after(height) * _after(width), 512)
        self.head = nn.Linear(512, request.classes)
        self.feature_dim = 512

    def features(self, x: Tensor) -> Tensor:
        """Return the output of the hidden layer."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return F.relu(self.fc1(torch.flatten(x, 1)))


def _after(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


MODELS = {
    "fedavg-cnn-4": ModelEntry(
        "FedAvg's CNN: 5×5 convolutions 32, 64, hidden layer 512", FedAvgCNN, min_side=16, channels_last=True
    )
}
