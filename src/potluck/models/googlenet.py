"""GoogLeNet: nine inception blocks with batch norm, without the auxiliary classifiers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel
from potluck.models.entry import InputSpec, ModelEntry

# (inputs, 1×1, before the 3×3, 3×3, before the second 3×3, second 3×3, after the pooling)
_BLOCKS: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}


class Inception(nn.Module):
    """Four views of the input side by side.

    The third filters 3×3 where the paper has 5×5: so does the torchvision network that the published
    experiments used, and so its parameter count says.
    """

    def __init__(
        self, inputs: int, channels1: int, before: int, three: int, before5: int, five: int, pooled: int
    ) -> None:
        super().__init__()
        self.branch1 = _conv(inputs, channels1, 1)
        self.branch2 = nn.Sequential(_conv(inputs, before, 1), _conv(before, three, 3))
        self.branch3 = nn.Sequential(_conv(inputs, before5, 1), _conv(before5, five, 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _conv(inputs, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the four branches, concatenated over channels."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNet(ClientModel):
    """A stem, nine inception blocks with pooling between, global average pooling, dropout, a linear head."""

    def __init__(self, request: InputSpec) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _conv(request.shape[0], 64, 7, stride=2),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            _conv(64, 64, 1),
            _conv(64, 192, 3),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
        )
        self.inception = nn.Sequential()
        for name, plan in _BLOCKS.items():
            if name == "4a":
                self.inception.add_module("pool3", nn.MaxPool2d(3, stride=2, ceil_mode=True))
            if name == "5a":
                self.inception.add_module("pool4", nn.MaxPool2d(2, stride=2, ceil_mode=True))
            self.inception.add_module(name, Inception(*plan))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(1024, request.classes)
        self.feature_dim = 1024
        self.apply(_initialise)

    def features(self, x: Tensor) -> Tensor:
        """Return the mean over positions of the last block's output."""
        x = F.adaptive_avg_pool2d(self.inception(self.stem(x)), 1)
        dropped: Tensor = self.dropout(torch.flatten(x, 1))
        return dropped


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs, eps=1e-3), nn.ReLU())


def _initialise(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.trunc_normal_(layer.weight, std=0.01, a=-0.02, b=0.02)


MODELS = {
    "googlenet": ModelEntry(
        "GoogLeNet without auxiliary classifiers, 1024 features", GoogLeNet, min_side=15, channels_last=True
    )
}
