"""FedHe's ten convolutional networks, with the Keras conventions they were published in."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel
from potluck.models.entry import InputSpec, ModelEntry


class SameAvgPool(nn.Module):
    """2×2 means at stride 1 that keep the size; at the right and lower edge only real pixels count.

    Repeating the last row and column gives exactly that: a mean of equal numbers is the number.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Average each pixel with its right and lower neighbours."""
        x = torch.cat([x, x[:, :, -1:]], 2)
        return F.avg_pool2d(torch.cat([x, x[:, :, :, -1:]], 3), 2, stride=1)


class FedHeCNN(ClientModel):
    """Two or three blocks of convolution, batch norm, ReLU and dropout; a linear head without bias.

    The paper's table prints 198 filters for the third layer of the tenth network; its code, and FedMD,
    from which the networks come, have 192.
    """

    def __init__(self, request: InputSpec, widths: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        channels, height, width = request.shape
        kernels = (3, 3) if len(widths) == 2 else (3, 2, 3)
        pools = (
            (SameAvgPool(), nn.AvgPool2d(2), nn.Identity())
            if len(widths) == 3
            else (SameAvgPool(), nn.Identity())
        )
        blocks: list[nn.Module] = []
        for place, (outputs, kernel, pool) in enumerate(zip(widths, kernels, pools, strict=True)):
            conv = nn.Conv2d(channels, outputs, kernel, stride=2 if place else 1, padding=0 if place else 1)
            norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
            blocks.append(nn.Sequential(conv, norm, nn.ReLU(), nn.Dropout(dropout), pool))
            channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.feature_dim = channels * _side(height, len(widths)) * _side(width, len(widths))
        self.head = nn.Linear(self.feature_dim, request.classes, bias=False)
        self.apply(_lecun_normal)

    def features(self, x: Tensor) -> Tensor:
        """Return the last block's output, flat."""
        return torch.flatten(self.blocks(x), 1)


def _side(side: int, blocks: int) -> int:
    """Return the side of the last block's output."""
    return ((side if blocks == 2 else side // 4) - 3) // 2 + 1


def _lecun_normal(layer: nn.Module) -> None:
    """Normal numbers cut off at two deviations, of variance 1/fan-in after the cut; biases are zero."""
    if isinstance(layer, nn.Conv2d | nn.Linear):
        spread = math.sqrt(1 / layer.weight[0].numel()) / 0.8796256610342398
        nn.init.trunc_normal_(layer.weight, std=spread, a=-2 * spread, b=2 * spread)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


_NETWORKS: tuple[tuple[tuple[int, ...], float], ...] = (
    ((128, 256), 0.2),
    ((128, 384), 0.2),
    ((128, 512), 0.2),
    ((256, 256), 0.3),
    ((256, 512), 0.4),
    ((64, 128, 256), 0.2),
    ((64, 128, 192), 0.2),
    ((128, 192, 256), 0.2),
    ((128, 128, 128), 0.3),
    ((128, 128, 192), 0.3),
)

MODELS = {
    f"fedhe-{number}": ModelEntry(
        summary=f"FedHe's network {number}: convolutions {', '.join(map(str, widths))}, dropout {dropout}",
        build=partial(FedHeCNN, widths=widths, dropout=dropout),
        min_side=3 if len(widths) == 2 else 12,
        channels_last=True,
    )
    for number, (widths, dropout) in enumerate(_NETWORKS)
}
