"""Inputs as pictures with values in [0, 1], and how alike two of them are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

WINDOW = 7
"""The side of the squares that SSIM looks at, or the picture's own where that is smaller."""
EVEN, CONTRAST = 0.01**2, 0.03**2
"""C₁ and C₂ of Wang et al. (2004), for values in [0, 1]."""
LEAST_ERROR = 1e-6
"""A mean square below which pictures count as equal: no PSNR is above 60 dB."""


def are_pictures(shape: tuple[int, ...], vocabulary: int | None) -> bool:
    """Whether inputs of this shape can be looked at: grey or in three colours."""
    return vocabulary is None and len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


@dataclass(frozen=True)
class Shades:
    """Channel by channel, the model inputs that are black and white: the lowest and highest of some samples."""

    low: Tensor
    span: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Shades:
        """Those of samples `[n, channels, height, width]`."""
        low, high = x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)
        return cls(low, torch.where(high > low, high - low, torch.ones_like(low)))

    def pictures(self, x: Tensor) -> Tensor:
        """Inputs as values in [0, 1]."""
        return ((x - self.low) / self.span).clamp(0, 1)


def psnr(one: Tensor, other: Tensor) -> float:
    """Peak signal to noise in decibels, −10 log₁₀ of the mean squared difference."""
    error = (one - other).double().square().mean().clamp(min=LEAST_ERROR)
    return float(-10 * torch.log10(error))


def ssim(one: Tensor, other: Tensor) -> float:
    """Structural similarity, the mean over all squares and channels: 1 for equal pictures."""
    x, y = (picture.double()[None] for picture in (one, other))
    side = min(WINDOW, *x.shape[2:])

    def mean(values: Tensor) -> Tensor:
        return avg_pool2d(values, side, stride=1)

    mx, my = mean(x), mean(y)
    spread_x, spread_y, common = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    alike = (2 * mx * my + EVEN) * (2 * common + CONTRAST)
    return float((alike / ((mx * mx + my * my + EVEN) * (spread_x + spread_y + CONTRAST))).mean())
