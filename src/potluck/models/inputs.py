"""From the rows of a data set to the inputs that pretrained networks were trained on: pictures, and pieces of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.errors import PotluckError


@dataclass(frozen=True)
class InputFacts:
    """What a model may know of its inputs: how pixels were normalised, and which words the numbers stand for.

    Inputs times `std` plus `mean`, per channel, are pixels from 0 to 1. `words` have the numbers 2, 3, …;
    `image_size` replaces the size of pictures that a network was trained on.
    """

    mean: tuple[float, ...] | None = (0.0,)
    std: tuple[float, ...] = (1.0,)
    words: tuple[str, ...] = ()
    image_size: int | None = None


PLAIN_INPUTS = InputFacts()


@dataclass(frozen=True)
class PictureFormat:
    """The pictures that a network was trained on: side in pixels, and the normalisation of values from 0 to 1."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class PictureInput(nn.Module):
    """Turns normalised images of any size into colour pictures as a pretrained network expects them.

    It has no tensors of its own, so that nothing of it is trained, sent or saved.
    """

    def __init__(self, name: str, channels: int, facts: InputFacts, expected: PictureFormat) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise PotluckError(
                f"Model {name!r} takes grey or colour images, and the data have {channels} channels; choose another "
                "model or other data."
            )
        if facts.mean is None:
            raise PotluckError(
                f"Model {name!r} brings its own normalisation, which cannot follow data.normalise = 'mean-image'; "
                "leave that out."
            )
        self.size = facts.image_size or expected.size
        mean, std = ([*part] * (3 if len(part) == 1 else 1) for part in (facts.mean, facts.std))
        gains = [old / new for old, new in zip(std, expected.std, strict=True)]
        offsets = [
            (old - new) / scale for old, new, scale in zip(mean, expected.mean, expected.std, strict=True)
        ]
        self.gain, self.offset = tuple(gains), tuple(offsets)

    def forward(self, x: Tensor) -> Tensor:
        """Return pictures `[batch, 3, size, size]`."""
        shape = (1, 3, 1, 1)
        x = x.expand(-1, 3, -1, -1) * x.new_tensor(self.gain).view(shape) + x.new_tensor(self.offset).view(
            shape
        )
        if x.shape[-2:] == (self.size, self.size):
            return x
        shrinks = max(x.shape[-2:]) > self.size
        return F.interpolate(x, size=(self.size, self.size), mode="bilinear", antialias=shrinks)


class PieceInput(nn.Module):
    """Turns rows of word numbers into rows of a pretrained network's word pieces, and the mask of what is not padding.

    `words` are the pieces of each word of the data set's vocabulary; other words become the unknown piece.
    """

    def __init__(
        self,
        words: Sequence[Sequence[int]],
        *,
        unknown: int,
        padding: int,
        start: int | None,
        end: int | None,
        longest: int,
    ) -> None:
        super().__init__()
        pieces = [[], [unknown], *words]
        width = max(1, *map(len, pieces))
        table = torch.full((len(pieces), width), -1, dtype=torch.int64, device="cpu")
        for number, row in enumerate(pieces):
            table[number, : len(row)] = torch.tensor(row, dtype=torch.int64, device="cpu")
        self.table = _Constant(table)
        self.padding, self.start, self.end, self.longest = padding, start, end, longest

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return pieces and mask, `[batch, length]`; the length is that of the longest row."""
        pieces = self.table.on(x.device)[x].flatten(1)
        room = self.longest - (self.start is not None) - (self.end is not None)
        # A stable sort moves padding behind the pieces of each row, whose order stays.
        order = (pieces < 0).int().argsort(dim=1, stable=True)
        pieces = pieces.gather(1, order)[:, :room]
        counts = (pieces >= 0).sum(1, keepdim=True)
        pieces = pieces[:, : max(1, int(counts.max()))]
        if self.end is not None:
            pieces = torch.cat([pieces, pieces.new_full((len(x), 1), -1)], 1).scatter(1, counts, self.end)
        if self.start is not None:
            pieces = torch.cat([pieces.new_full((len(x), 1), self.start), pieces], 1)
        mask = pieces >= 0
        return torch.where(mask, pieces, self.padding), mask


class _Constant:
    """A tensor that is part of no state and that copies of a module share."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def on(self, device: torch.device) -> Tensor:
        """Return the tensor on a device; it stays there."""
        self.tensor = self.tensor.to(device)
        return self.tensor

    def __deepcopy__(self, memo: object) -> _Constant:
        return self
