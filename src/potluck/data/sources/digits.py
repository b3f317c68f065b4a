"""The handwritten digits that come with scikit-learn: no file, no network."""

from __future__ import annotations

import torch

from potluck.data.dataset import Data
from potluck.data.sources.base import Request, Source
from potluck.data.transforms import Normalise


def load(request: Request) -> Data:
    """1,797 images of 8×8 pixels with sixteen levels of grey, scaled to [0, 1]."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).to(torch.uint8).unsqueeze(1)
    y = torch.from_numpy(bunch.target).to(torch.int64)
    names = tuple(str(digit) for digit in range(10))
    return Data("digits", x, y, 10, (1, 8, 8), transform=Normalise(scale=1 / 16), class_names=names)


SOURCES = (Source("digits", "handwritten digits, 1,797 of 8×8 pixels; embedded, no download", load),)
