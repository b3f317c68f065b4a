"""Random changes to training images, for a whole batch at once and from the client's own random stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from potluck.core.errors import PotluckError, unknown

Augmentation = Callable[[Tensor, Generator], Tensor]


def flip(x: Tensor, rng: Generator) -> Tensor:
    """Mirror every second image, at random, left to right."""
    chosen = torch.rand(len(x), generator=rng).to(x.device) < 0.5
    return torch.where(chosen[:, None, None, None], x.flip(-1), x)


def crop(x: Tensor, rng: Generator, margin: int = 4) -> Tensor:
    """Shift each image by up to `margin` pixels in both directions; what comes in from outside is 0."""
    n, _, height, width = x.shape
    padded = pad(x, (margin, margin, margin, margin))
    start = torch.randint(0, 2 * margin + 1, (2, n, 1), generator=rng).to(x.device)
    rows = start[0] + torch.arange(height, device=x.device)
    columns = start[1] + torch.arange(width, device=x.device)
    images = torch.arange(n, device=x.device)
    picked = padded[
        images[:, None, None], :, rows[:, :, None], columns[:, None, :]
    ]  # [n, height, width, channels]
    return picked.movedim(-1, 1).contiguous()


def erase(
    x: Tensor,
    rng: Generator,
    probability: float = 0.5,
    scale: tuple[float, float] = (0.04, 0.2),
    ratio: tuple[float, float] = (0.5, 2.0),
) -> Tensor:
    """Set a random rectangle to 0 in half of the images: 4 to 20 % of the area, sides 1:2 to 2:1."""
    n, _, height, width = x.shape
    chosen, area, shape, top, left = torch.rand(5, n, generator=rng).to(x.device)
    area = (scale[0] + (scale[1] - scale[0]) * area) * height * width
    shape = torch.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * shape)
    tall = torch.sqrt(area * shape).round().clamp(1, height)
    wide = torch.sqrt(area / shape).round().clamp(1, width)
    first_row = (top * (height - tall + 1)).floor()
    first_column = (left * (width - wide + 1)).floor()
    box = _box(x, first_row, first_row + tall, first_column, first_column + wide)
    return x.masked_fill(box & (chosen < probability)[:, None, None, None], 0)


def cutout(x: Tensor, rng: Generator, side: int = 16) -> Tensor:
    """Set a square to 0 around a random pixel of each image; the square is cut off at the border."""
    n, _, height, width = x.shape
    row = torch.randint(0, height, (n,), generator=rng).to(x.device)
    column = torch.randint(0, width, (n,), generator=rng).to(x.device)
    half = side // 2
    return x.masked_fill(_box(x, row - half, row + half, column - half, column + half), 0)


def _box(x: Tensor, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return which pixels lie in each image's rectangle (its ends excluded), `[n, 1, height, width]`."""
    rows = torch.arange(x.shape[2], device=x.device)
    columns = torch.arange(x.shape[3], device=x.device)
    tall = (rows >= top[:, None]) & (rows < bottom[:, None])
    wide = (columns >= left[:, None]) & (columns < right[:, None])
    return (tall[:, :, None] & wide[:, None, :])[:, None]


AUGMENTATIONS: dict[str, Augmentation] = {"flip": flip, "crop": crop, "erase": erase, "cutout": cutout}


def augmentation(names: Sequence[str]) -> Augmentation:
    """Return the named changes, one after the other: any of `flip`, `crop`, `erase`, `cutout`; none leaves x as it is.

    Meant for normalised batches `[n, channels, height, width]`, where 0 is the mean colour.
    """
    for name in names:
        if name not in AUGMENTATIONS:
            raise unknown("augmentation", name, AUGMENTATIONS)
    steps = [AUGMENTATIONS[name] for name in names]

    def apply(x: Tensor, rng: Generator) -> Tensor:
        if steps and x.dim() != 4:
            raise PotluckError(
                f"Augmentation {', '.join(names)} needs images [batch, channels, height, width] "
                f"but the batch has shape {tuple(x.shape)}; leave augmentation empty."
            )
        for step in steps:
            x = step(x, rng)
        return x

    return apply
