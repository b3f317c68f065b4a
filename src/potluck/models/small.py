"""Five small networks of different kinds for images from 8×8, all with 64 features.

They differ in kind on purpose (dense, convolutional, wide and shallow, residual, depthwise): together
they are the smallest honest case of model heterogeneity, and train in milliseconds on one core.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel, he_normal
from potluck.models.entry import InputSpec, ModelEntry

FEATURES = 64


class SmallMLP(ClientModel):
    """Two dense layers on the flattened image."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.fc1 = nn.Linear(math.prod(request.shape), 128)
        self.fc2 = nn.Linear(128, FEATURES)
        self.apply(he_normal)
        self.head = nn.Linear(FEATURES, request.classes)
        self.feature_dim = FEATURES

    def features(self, x: Tensor) -> Tensor:
        """Return the output of the second dense layer."""
        return F.relu(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))))


class SmallCNN(ClientModel):
    """Two 3×3 convolutions, each halving the image, and one dense layer."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(request.shape[0], 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 2 * 2, FEATURES)
        self.apply(he_normal)
        self.head = nn.Linear(FEATURES, request.classes)
        self.feature_dim = FEATURES

    def features(self, x: Tensor) -> Tensor:
        """Return the output of the dense layer."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return F.relu(self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 2), 1)))


class SmallWide(ClientModel):
    """One wide layer of 5×5 filters, pooled to 4×4, and one dense layer."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.conv = nn.Conv2d(request.shape[0], 40, 5, padding=2)
        self.fc = nn.Linear(40 * 4 * 4, FEATURES)
        self.apply(he_normal)
        self.head = nn.Linear(FEATURES, request.classes)
        self.feature_dim = FEATURES

    def features(self, x: Tensor) -> Tensor:
        """Return the output of the dense layer."""
        x = F.adaptive_avg_pool2d(F.relu(F.max_pool2d(self.conv(x), 2)), 4)
        return F.relu(self.fc(torch.flatten(x, 1)))


class Residual(nn.Module):
    """Two normalised 3×3 convolutions beside a strided 1×1 shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class SmallRes(ClientModel):
    """A residual block with batch normalisation and global average pooling."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.conv = nn.Conv2d(request.shape[0], 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.block = Residual(16, FEATURES)
        self.head = nn.Linear(FEATURES, request.classes)
        self.feature_dim = FEATURES

    def features(self, x: Tensor) -> Tensor:
        """Return the mean over positions of the block's output."""
        x = F.relu(self.bn(self.conv(x)))
        maps: Tensor = self.block(x)
        return maps.mean((2, 3))


def _separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return a depthwise 3×3 filter per channel, then a 1×1 mixture of channels."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride=stride, padding=1, groups=inputs, bias=False),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class SmallSep(ClientModel):
    """Depthwise-separable convolutions with batch normalisation and global average pooling."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(request.shape[0], 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()
        )
        self.sep1 = _separable(24, 48, stride=2)
        self.sep2 = _separable(48, FEATURES, stride=1)
        self.head = nn.Linear(FEATURES, request.classes)
        self.feature_dim = FEATURES

    def features(self, x: Tensor) -> Tensor:
        """Return the mean over positions of the last layer's output."""
        maps: Tensor = self.sep2(self.sep1(self.stem(x)))
        return maps.mean((2, 3))


MODELS = {
    "small-mlp": ModelEntry("two dense layers for small images, 64 features", SmallMLP),
    "small-cnn": ModelEntry(
        "two 3×3 convolutions for small images, 64 features", SmallCNN, min_side=4, channels_last=True
    ),
    "small-wide": ModelEntry(
        "one wide layer of 5×5 filters for small images, 64 features",
        SmallWide,
        min_side=4,
        channels_last=True,
    ),
    "small-res": ModelEntry(
        "a residual block with batch norm for small images, 64 features",
        SmallRes,
        min_side=4,
        channels_last=True,
    ),
    "small-sep": ModelEntry(
        "depthwise-separable convolutions for small images, 64 features",
        SmallSep,
        min_side=4,
        channels_last=True,
    ),
}
