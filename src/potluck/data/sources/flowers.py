"""Oxford Flowers-102 as published: the jpg folder, imagelabels.mat and setid.mat."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from potluck.data.cache import RawArrays, read_cached
from potluck.data.dataset import Data, Normalise
from potluck.data.fetch import Download
from potluck.data.files import damaged_file, find_file
from potluck.data.raw import image_rows
from potluck.data.sources.base import LoadRequest, Source
from potluck.data.sources.images import read_images
from potluck.data.sources.matlab import read_mat

BASE = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
HALF = Normalise((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def _read(folder: Path, size: int) -> RawArrays:
    labels = read_mat(folder / "imagelabels.mat", ("labels",))["labels"].reshape(-1).astype(np.int64)
    sets = read_mat(folder / "setid.mat", ("trnid", "valid", "tstid"))
    train = np.concatenate([sets["trnid"].reshape(-1), sets["valid"].reshape(-1)]).astype(np.int64)
    order = np.concatenate([train, sets["tstid"].reshape(-1).astype(np.int64)])
    if len(order) and (order.min() < 1 or order.max() > len(labels)):
        raise damaged_file(folder / "setid.mat", f"image {order.max()} of {len(labels)} labelled images")
    files = [folder / "jpg" / f"image_{number:05d}.jpg" for number in order]
    x = read_images(files, size)
    raw = image_rows(x.shape[1:], x.dtype, resize=True)
    return RawArrays(x, labels[order - 1] - 1, len(train), raw=raw)


def load(request: LoadRequest) -> Data:
    """2,040 training (the publisher's training and validation parts) and 6,149 test images."""
    folder, size = request.root / "flowers102", request.image_size or 64
    sources = [find_file("flowers102", (folder,), file) for file in ("imagelabels.mat", "setid.mat")]
    find_file("flowers102", (folder / "jpg",), "image_00001.jpg")
    raw = read_cached(
        request.root, "flowers102", [*sources, folder / "jpg"], lambda: _read(folder, size), size
    )
    return raw.data("flowers102", HALF)


SOURCES = (
    Source(
        "flowers102",
        "flowers, 2,040 + 6,149 in colour, resized to 64×64 (or image_size)",
        load,
        "flowers102/ with imagelabels.mat, setid.mat and the folder jpg/ of 102flowers.tgz",
        8_189,
        (
            Download(
                f"{BASE}/102flowers.tgz",
                "md5:52808999861908f626f3c1f4e79d11fa",
                "flowers102",
                "flowers102/jpg",
                archive=True,
            ),
            Download(
                f"{BASE}/imagelabels.mat",
                "md5:e0620be6f572b9609742df49c70aed4d",
                "flowers102/imagelabels.mat",
                "flowers102/imagelabels.mat",
            ),
            Download(
                f"{BASE}/setid.mat",
                "md5:a5357ecc9cb78c4bef273ce3793fc85c",
                "flowers102/setid.mat",
                "flowers102/setid.mat",
            ),
        ),
        ("image_size",),
    ),
)
