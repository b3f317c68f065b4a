"""Residual networks from 4 to 152 layers, and a small family of five depths.

Parameters are named by stage and block (`layer2.0.conv1.weight`), so the names of a shallow network are a
subset of a deeper one's, with equal shapes: averaging by name works across depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel
from potluck.models.entry import InputSpec, ModelEntry


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside the identity, or a 1×1 convolution where the shape changes."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3×3 convolution between two of 1×1, the last four times as wide; the stride is in the middle."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(ClientModel):
    """A stem, up to four stages of residual blocks, global average pooling and a linear head."""

    def __init__(
        self,
        request: InputSpec,
        blocks: Sequence[int],
        block: type[BasicBlock] | type[Bottleneck] = BasicBlock,
        widths: Sequence[int] = (64, 128, 256, 512),
        small_stem: bool = False,
    ) -> None:
        super().__init__()
        inputs = widths[0]
        self.stem = _stem(request.shape[0], inputs, small_stem)
        self.depth = len(blocks)
        for place, (count, width) in enumerate(zip(blocks, widths, strict=False)):
            strides = [2 if place else 1] + [1] * (count - 1)
            stage = nn.Sequential()
            for stride in strides:
                stage.append(block(inputs, width, stride))
                inputs = width * block.expansion
            self.add_module(f"layer{place + 1}", stage)
        self.head = nn.Linear(inputs, request.classes)
        self.feature_dim = inputs
        self.apply(_initialise)

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """The stem and each stage of blocks."""
        return self.stem, *(self.get_submodule(f"layer{place + 1}") for place in range(self.depth))

    def pool(self, x: Tensor) -> Tensor:
        """Return the mean over all positions."""
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


def _stem(inputs: int, outputs: int, small: bool) -> nn.Sequential:
    """Return the papers' 7×7 stem, which divides the side by four, or a 3×3 one that keeps it."""
    stem = nn.Sequential()
    if small:
        stem.add_module("conv", nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
    else:
        stem.add_module("conv", nn.Conv2d(inputs, outputs, 7, stride=2, padding=3, bias=False))
    stem.add_module("bn", nn.BatchNorm2d(outputs))
    stem.add_module("relu", nn.ReLU())
    if not small:
        stem.add_module("maxpool", nn.MaxPool2d(3, stride=2, padding=1))
    return stem


def _initialise(layer: nn.Module) -> None:
    """He's initialisation for convolutions; batch norm starts as the identity by itself."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


_BASIC = {
    4: (1,),
    6: (1, 1),
    8: (1, 1, 1),
    10: (1, 1, 1, 1),
    14: (1, 1, 2, 2),
    18: (2, 2, 2, 2),
    22: (2, 2, 3, 3),
    26: (3, 3, 3, 3),
    34: (3, 4, 6, 3),
}
_DEEP = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_MINI = {1: (1, 1, 1), 2: (1, 1, 2), 3: (2, 2, 2), 4: (2, 2, 3), 5: (3, 3, 3)}


def _entries() -> dict[str, ModelEntry]:
    entries: dict[str, ModelEntry] = {}
    for suffix, stem in (("", "7×7"), ("-cifar", "3×3")):
        for depth, blocks in (_BASIC | _DEEP).items():
            kind = Bottleneck if depth in _DEEP else BasicBlock
            text = f"ResNet-{depth}, blocks {'-'.join(map(str, blocks))}, {stem} stem"
            build = partial(ResNet, blocks=blocks, block=kind, small_stem=bool(suffix))
            # As measured on 32×32: basic blocks lose it on maps of a pixel or two, bottlenecks gain it only there.
            last = len(blocks) < 4 or (kind is Bottleneck) != bool(suffix)
            entries[f"resnet{depth}{suffix}"] = ModelEntry(text, build, channels_last=last)
    for number, blocks in _MINI.items():
        text = f"small ResNet of widths 8, 16, 32, blocks {'-'.join(map(str, blocks))}, for images from 8×8"
        build = partial(ResNet, blocks=blocks, widths=(8, 16, 32), small_stem=True)
        entries[f"mini-resnet-{number}"] = ModelEntry(text, build, min_side=4, channels_last=True)
    return entries


MODELS = _entries()
