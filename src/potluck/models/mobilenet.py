"""MobileNetV2: inverted residuals with linear bottlenecks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel
from potluck.models.entry import InputSpec, ModelEntry

# (how many times the block widens its input, output channels, blocks, stride of the first)
_PLAN = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Widen, filter each channel on its own, narrow again; add the input where shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int) -> None:
        super().__init__()
        hidden = inputs * widen
        layers = [_conv(inputs, hidden, 1)] if widen > 1 else []
        layers.append(_conv(hidden, hidden, 3, stride, groups=hidden))
        narrow = nn.Conv2d(hidden, outputs, 1, bias=False)
        self.conv = nn.Sequential(*layers, narrow, nn.BatchNorm2d(outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y: Tensor = self.conv(x)
        return x + y if self.residual else y


class MobileNetV2(ClientModel):
    """Seventeen inverted residuals, global average pooling, dropout and a linear head."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        channels = 32
        layers: list[nn.Module] = [_conv(request.shape[0], channels, 3, stride=2)]
        for widen, outputs, count, first in _PLAN:
            for place in range(count):
                layers.append(InvertedResidual(channels, outputs, 1 if place else first, widen))
                channels = outputs
        layers.append(_conv(channels, 1280, 1))
        self.layers = nn.Sequential(*layers)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(1280, request.classes)
        self.feature_dim = 1280
        self.apply(_initialise)

    def features(self, x: Tensor) -> Tensor:
        """Return the mean over positions of the last layer's output."""
        x = F.adaptive_avg_pool2d(self.layers(x), 1)
        dropped: Tensor = self.dropout(torch.flatten(x, 1))
        return dropped


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


def _initialise(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    elif isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, 0, 0.01)
        nn.init.zeros_(layer.bias)


MODELS = {
    "mobilenet-v2": ModelEntry(
        "MobileNetV2: inverted residuals, 1280 features", MobileNetV2, channels_last=True
    )
}
