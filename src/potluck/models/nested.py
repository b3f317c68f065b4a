"""Width-nested families: one network in many widths, for HeteroFL and FedRolex.

At rate r a hidden layer has ceil(r · width) channels; input channels and classes stay whole. All rates have
the same tensor names, and the head follows a global average, so every tensor of a narrow network is an index
slice of the widest one's that shapes alone determine. A slice keeps, in every layer of full width n, the same
indices modulo n; layers of one width therefore keep equal index sets, and the two branches of a residual sum
stay aligned, however the window is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel
from potluck.models.entry import InputSpec, ModelEntry


class Scaler(nn.Module):
    """Divide activations by the width rate while training, so that narrow and wide networks' weights match.

    A narrow network trains on sums of fewer terms; in testing the weights are used as they are.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, divided in training mode."""
        return x / self.rate if self.training else x


@dataclass(frozen=True)
class Width:
    """How one member of a nested family is built: its rate, and how it normalises.

    `scaler` turns the training-time division on; `track` lets batch norm keep running statistics, which
    the published methods leave out because averaged statistics of different widths mean nothing.
    """

    rate: float = 1.0
    scaler: bool = True
    track: bool = False

    def of(self, width: int) -> int:
        """Return the number of channels that stand for `width` at this rate."""
        return math.ceil(round(self.rate * width, 9))

    def norm(self, channels: int) -> nn.Module:
        """Return a scaler followed by batch norm."""
        norm = nn.Sequential()
        norm.add_module("scaler", Scaler(self.rate) if self.scaler else nn.Identity())
        norm.add_module("bn", nn.BatchNorm2d(channels, track_running_stats=self.track))
        return norm


class SlimCNN(ClientModel):
    """Three 3×3 convolutions, two poolings and a global average; small enough for 8×8 images on a CPU."""

    def __init__(
        self, request: InputSpec, rate: float = 1.0, scaler: bool = True, track_running_stats: bool = False
    ) -> None:
        super().__init__()
        width = Width(rate, scaler, track_running_stats)
        self.width_rate = rate
        channels = request.shape[0]
        for place, full in enumerate((64, 128, 128), start=1):
            outputs = width.of(full)
            self.add_module(f"conv{place}", nn.Conv2d(channels, outputs, 3, padding=1, bias=False))
            self.add_module(f"norm{place}", width.norm(outputs))
            channels = outputs
        self.head = nn.Linear(channels, request.classes)
        self.feature_dim = channels

    def features(self, x: Tensor) -> Tensor:
        """Return the mean over positions of the last layer's output."""
        for place in (1, 2, 3):
            conv, norm = self.get_submodule(f"conv{place}"), self.get_submodule(f"norm{place}")
            x = norm(conv(x))
            x = F.relu(F.max_pool2d(x, 2) if place < 3 else x)
        return x.mean((2, 3))


class PreBasic(nn.Module):
    """A pre-activation residual block of two 3×3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, hidden: int, stride: int, changes: bool, width: Width) -> None:
        super().__init__()
        self.norm1 = width.norm(inputs)
        self.conv1 = nn.Conv2d(inputs, hidden, 3, stride, padding=1, bias=False)
        self.norm2 = width.norm(hidden)
        self.conv2 = nn.Conv2d(hidden, hidden, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, hidden, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut, which where shapes change also starts after the activation."""
        y = F.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(y)
        branch: Tensor = self.conv2(F.relu(self.norm2(self.conv1(y))))
        return x + branch


class PreBottleneck(nn.Module):
    """A pre-activation residual block with a 3×3 convolution between two of 1×1."""

    expansion = 4

    def __init__(self, inputs: int, hidden: int, stride: int, changes: bool, width: Width) -> None:
        super().__init__()
        outputs = hidden * self.expansion
        self.norm1 = width.norm(inputs)
        self.conv1 = nn.Conv2d(inputs, hidden, 1, bias=False)
        self.norm2 = width.norm(hidden)
        self.conv2 = nn.Conv2d(hidden, hidden, 3, stride, padding=1, bias=False)
        self.norm3 = width.norm(hidden)
        self.conv3 = nn.Conv2d(hidden, outputs, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut, which where shapes change also starts after the activation."""
        y = F.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(y)
        y = self.conv2(F.relu(self.norm2(self.conv1(y))))
        branch: Tensor = self.conv3(F.relu(self.norm3(y)))
        return x + branch


class PreResNet(ClientModel):
    """A pre-activation residual network with a 3×3 stem, at a fraction of its width."""

    def __init__(
        self,
        request: InputSpec,
        rate: float = 1.0,
        scaler: bool = True,
        track_running_stats: bool = False,
        blocks: Sequence[int] = (2, 2, 2, 2),
        block: type[PreBasic] | type[PreBottleneck] = PreBasic,
    ) -> None:
        super().__init__()
        width = Width(rate, scaler, track_running_stats)
        self.width_rate = rate
        inputs = width.of(64)
        self.stem = nn.Conv2d(request.shape[0], inputs, 3, padding=1, bias=False)
        for place, count in enumerate(blocks):
            hidden = width.of(64 * 2**place)
            stage = nn.Sequential()
            for number in range(count):
                # Decided by position, not by comparing channels: the names must be the same at every rate.
                changes = number == 0 and (place > 0 or block.expansion > 1)
                stride = 2 if number == 0 and place else 1
                stage.append(block(inputs, hidden, stride, changes, width))
                inputs = hidden * block.expansion
            self.add_module(f"layer{place + 1}", stage)
        self.norm = width.norm(inputs)
        self.head = nn.Linear(inputs, request.classes)
        nn.init.zeros_(self.head.bias)
        self.feature_dim = inputs

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """The stem and the four stages of blocks."""
        return self.stem, *(self.get_submodule(f"layer{place}") for place in (1, 2, 3, 4))

    def pool(self, x: Tensor) -> Tensor:
        """Return the last activation, averaged over positions."""
        return torch.flatten(F.adaptive_avg_pool2d(F.relu(self.norm(x)), 1), 1)


def _resnet152(request: InputSpec, rate: float = 1.0) -> PreResNet:
    return PreResNet(request, rate, blocks=(3, 8, 36, 3), block=PreBottleneck)


MODELS = {
    "slim-cnn": ModelEntry(
        "width-nested CNN of 64, 128, 128 filters", SlimCNN, min_side=4, rated=True, channels_last=True
    ),
    "preresnet18": ModelEntry("width-nested pre-activation ResNet-18, 3×3 stem", PreResNet, rated=True),
    "preresnet152": ModelEntry("width-nested pre-activation ResNet-152, 3×3 stem", _resnet152, rated=True),
}
