"""From raw rows to model input: uint8 pixels to normalised floats, in any float type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from potluck.core.samples import Transform


@dataclass(frozen=True)
class Normalise:
    """`(x * scale - mean) / std` per channel (dimension 1), computed in `dtype`.

    One multiplication and one addition: `gain` and `offset` are worked out in double precision first,
    so that float32 and float64 experiments see the same numbers up to rounding.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1 / 255
    dtype: torch.dtype = torch.float32
    gain: Tensor = field(init=False, repr=False, compare=False)
    offset: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        std, mean = torch.tensor(self.std, dtype=torch.float64), torch.tensor(self.mean, dtype=torch.float64)
        object.__setattr__(self, "gain", (self.scale / std).to(self.dtype))
        object.__setattr__(self, "offset", (-mean / std).to(self.dtype))

    def __call__(self, x: Tensor) -> Tensor:
        shape = (-1,) + (1,) * (x.dim() - 2)
        gain, offset = (part.to(x.device).view(shape) for part in (self.gain, self.offset))
        values = x.to(self.dtype) if x.is_floating_point() else x  # bytes are converted by the product itself
        return torch.mul(values, gain).add_(offset)

    def to_dtype(self, dtype: torch.dtype) -> Normalise:
        """The same normalisation in another float type."""
        return replace(self, dtype=dtype)


@dataclass(frozen=True)
class MeanImage:
    """`x * scale` minus a mean row (FedHe's preprocessing: pixels / 255 minus the mean image)."""

    mean: Tensor
    scale: float = 1 / 255
    dtype: torch.dtype = torch.float32

    def __call__(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).mul(self.scale).sub_(self.mean.to(x.device, self.dtype))

    def to_dtype(self, dtype: torch.dtype) -> MeanImage:
        """The same subtraction in another float type."""
        return replace(self, dtype=dtype)


@dataclass(frozen=True)
class Cast:
    """Run `first` (when there is one), then bring floats to `dtype`; tokens stay integers."""

    dtype: torch.dtype
    first: Transform | None = None

    def __call__(self, x: Tensor) -> Tensor:
        x = x if self.first is None else self.first(x)
        return x.to(self.dtype) if x.is_floating_point() else x

    def to_dtype(self, dtype: torch.dtype) -> Cast:
        """The same steps ending in another float type."""
        return Cast(dtype, self.first)


def in_dtype(transform: Transform | None, dtype: torch.dtype) -> Transform:
    """`transform` made to give `dtype`: by asking it when it knows how, by a cast after it otherwise."""
    if isinstance(transform, Normalise | MeanImage | Cast):
        return transform.to_dtype(dtype)
    return Cast(dtype, transform)


def statistics(
    x: Tensor, rows: Sequence[int] | Tensor | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of raw float rows, for a `Normalise` with `scale=1`."""
    chosen = (x if rows is None else x[rows]).to(torch.float64)
    axes = [axis for axis in range(chosen.dim()) if axis != 1]
    std = chosen.std(axes, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    return tuple(chosen.mean(axes).tolist()), tuple(std.tolist())
