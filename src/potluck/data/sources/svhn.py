"""Street View House Numbers, cropped digits ("format 2"): two MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from potluck.data.cache import RawArrays, read_cached
from potluck.data.dataset import Data, Normalise
from potluck.data.fetch import Download
from potluck.data.files import damaged_file, find_file
from potluck.data.sources.base import LoadRequest, Source
from potluck.data.sources.matlab import read_mat

FILES = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
BASE = "http://ufldl.stanford.edu/housenumbers"


def read_part(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images `[n, 3, 32, 32]` and labels; the publisher writes the digit 0 as label 10."""
    content = read_mat(path, ("X", "y"))
    images, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
    if images.shape != (32, 32, 3, len(labels)) or images.dtype != np.uint8:
        raise damaged_file(path, f"images of shape {images.shape} for {len(labels)} labels")
    if labels.min(initial=1) < 1 or labels.max(initial=1) > 10:
        raise damaged_file(path, "labels outside 1 to 10")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels % 10


def _read(paths: list[Path]) -> RawArrays:
    (train, train_y), (test, test_y) = (read_part(path) for path in paths)
    names = tuple("0123456789")
    return RawArrays(
        np.concatenate([train, test]), np.concatenate([train_y, test_y]), len(train_y), class_names=names
    )


def load(request: LoadRequest) -> Data:
    """73,257 training and 26,032 test images of 32×32 colour pixels."""
    paths = [find_file("svhn", (request.root / "svhn",), file) for file in FILES]
    raw = read_cached(request.root, "svhn", paths, lambda: _read(paths))
    return raw.data("svhn", Normalise((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)))


SOURCES = (
    Source(
        "svhn",
        "house numbers, 73,257 + 26,032 of 32×32 in colour",
        load,
        "svhn/ with train_32x32.mat, test_32x32.mat",
        99_289,
        tuple(
            Download(f"{BASE}/{file}", f"md5:{md5}", f"svhn/{file}", f"svhn/{file}")
            for file, md5 in FILES.items()
        ),
    ),
)
