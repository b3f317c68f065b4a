"""Networks for sensor signals of shape (channels, steps), such as the six-activities phone recordings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel, he_normal
from potluck.models.entry import InputSpec, ModelEntry

FEATURES = 64


class HarCNN(ClientModel):
    """Two convolutions over time with pooling, and one dense layer."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(request.shape[0], 32, 5, padding=2)
        self.conv2 = nn.Conv1d(32, 64, 5, padding=2)
        self.fc = nn.Linear(64 * 8, FEATURES)
        self.apply(he_normal)
        self.head = nn.Linear(FEATURES, request.classes)
        self.feature_dim = FEATURES

    def features(self, x: Tensor) -> Tensor:
        """Return the output of the dense layer."""
        x = F.max_pool1d(F.relu(self.conv1(x)), 2)
        x = F.max_pool1d(F.relu(self.conv2(x)), 2)
        return F.relu(self.fc(torch.flatten(F.adaptive_avg_pool1d(x, 8), 1)))


class HarWide(ClientModel):
    """One layer of long filters over time, averaged over eight spans, and one dense layer."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.conv = nn.Conv1d(request.shape[0], 96, 15, stride=2, padding=7)
        self.fc = nn.Linear(96 * 8, FEATURES)
        self.apply(he_normal)
        self.head = nn.Linear(FEATURES, request.classes)
        self.feature_dim = FEATURES

    def features(self, x: Tensor) -> Tensor:
        """Return the output of the dense layer."""
        x = F.adaptive_avg_pool1d(F.relu(self.conv(x)), 8)
        return F.relu(self.fc(torch.flatten(x, 1)))


class HarLSTM(ClientModel):
    """A strided convolution that halves the steps, then a recurrent layer averaged over time."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.conv = nn.Conv1d(request.shape[0], 32, 5, stride=2, padding=2)
        self.lstm = nn.LSTM(32, FEATURES, batch_first=True)
        self.apply(he_normal)
        self.head = nn.Linear(FEATURES, request.classes)
        self.feature_dim = FEATURES

    def features(self, x: Tensor) -> Tensor:
        """Return the mean of the recurrent layer's outputs."""
        steps = F.relu(self.conv(x)).transpose(1, 2)
        outputs: Tensor = self.lstm(steps)[0]
        return outputs.mean(1)


MODELS = {
    "har-cnn": ModelEntry(
        "two 1-D convolutions for sensor signals, 64 features", HarCNN, kind="series", min_side=4
    ),
    "har-wide": ModelEntry(
        "one layer of long 1-D filters for sensor signals, 64 features", HarWide, kind="series"
    ),
    "har-lstm": ModelEntry("a recurrent layer for sensor signals, 64 features", HarLSTM, kind="series"),
}
