"""MNIST and Fashion-MNIST: the four IDX files, gzipped or plain."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from potluck.data.cache import RawArrays, read_cached
from potluck.data.dataset import Data, Normalise
from potluck.data.fetch import Download
from potluck.data.files import damaged_file, find_file, read_bytes
from potluck.data.sources.base import LoadRequest, Source

FILES = (
    "train-images-idx3-ubyte",
    "t10k-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-labels-idx1-ubyte",
)
DEBIAN = Path("/usr/share/datasets")  # where the package dataset-fashion-mnist puts its files
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
DIGITS = tuple("0123456789")


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return an IDX file of bytes: two zero bytes, the type 8, the number of dimensions, the sizes, the values."""
    content = read_bytes(path)
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes([0, 0, 8, dimensions]):
        raise damaged_file(path, f"not an IDX file of bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != int(np.prod(shape)):
        raise damaged_file(
            path, f"{len(content) - start:,} values where the header says {int(np.prod(shape)):,}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read(paths: list[Path], names: tuple[str, ...]) -> RawArrays:
    images = [read_idx(path, 3) for path in paths[:2]]
    labels = [read_idx(path, 1) for path in paths[2:]]
    for path, image, label in zip(paths[2:], images, labels, strict=True):
        if len(image) != len(label):
            raise damaged_file(path, f"{len(label):,} labels for {len(image):,} images")
        if label.max(initial=0) >= len(names):
            raise damaged_file(path, f"label {label.max()} of {len(names)} classes")
    return RawArrays(
        np.concatenate(images)[:, None], np.concatenate(labels), len(labels[0]), class_names=names
    )


def load(name: str, names: tuple[str, ...], normalise: Normalise, request: LoadRequest) -> Data:
    """60,000 training and 10,000 test images of 28×28 grey pixels."""
    paths = [find_file(name, (request.root / name, DEBIAN / name), file) for file in FILES]
    raw = read_cached(request.root, name, paths, lambda: _read(paths, names))
    return raw.data(name, normalise)


def _downloads(name: str, base: str, checksums: tuple[str, ...]) -> tuple[Download, ...]:
    return tuple(
        Download(f"{base}/{file}.gz", f"md5:{md5}", f"{name}/{file}.gz", f"{name}/{file}.gz")
        for file, md5 in zip(FILES, checksums, strict=True)
    )


def _layout(name: str) -> str:
    return (
        f"{name}/ with "
        + ", ".join(f"{file}.gz" for file in FILES)
        + " (unpacked files without .gz are as good)"
    )


SOURCES = (
    Source(
        "mnist",
        "handwritten digits, 60,000 + 10,000 of 28×28",
        partial(load, "mnist", DIGITS, Normalise((0.1307,), (0.3081,))),
        _layout("mnist"),
        70_000,
        _downloads(
            "mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "9fb629c4189551a2d022fa330f9573f3",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
    ),
    Source(
        "fashion-mnist",
        "clothes, 60,000 + 10,000 of 28×28",
        partial(load, "fashion-mnist", CLOTHES, Normalise((0.2860,), (0.3530,))),
        _layout("fashion-mnist") + ", or Debian's package dataset-fashion-mnist",
        70_000,
        _downloads(
            "fashion-mnist",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "bef4ecab320f06d8554ea6380940ec79",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
    ),
)
