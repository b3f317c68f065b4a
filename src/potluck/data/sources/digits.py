"""The handwritten digits that come with scikit-learn: no file, no network."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from potluck.data.dataset import Data, Normalise
from potluck.data.raw import ImageInput
from potluck.data.sources.base import LoadRequest, Source

RAW = ImageInput(grey=True, height=8, width=8, resize=True, maximum=16)


def load(request: LoadRequest) -> Data:
    """1,797 images of 8×8 pixels with sixteen levels of grey, scaled to [0, 1]."""
    table = torch.from_numpy(_table())
    x, y = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].to(torch.int64)
    names = tuple(str(digit) for digit in range(10))
    return Data("digits", x, y, 10, (1, 8, 8), transform=Normalise(scale=1 / 16), class_names=names, raw=RAW)


def _table() -> NDArray[np.uint8]:
    """64 pixels and the digit per row, from scikit-learn's own file: importing the library takes a second."""
    spec = find_spec("sklearn")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz" if spec and spec.origin else None
    if file is not None and file.exists():
        with gzip.open(file, "rt", encoding="ascii") as lines:
            return np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target]).astype(np.uint8)


SOURCES = (Source("digits", "handwritten digits, 1,797 of 8×8 pixels; embedded, no download", load),)
