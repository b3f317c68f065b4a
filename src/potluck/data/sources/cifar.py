"""CIFAR-10 and CIFAR-100 in the publisher's binary version: label bytes, then red, green, blue planes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from potluck.data.cache import RawArrays, read_cached
from potluck.data.dataset import Data, Normalise
from potluck.data.fetch import Download
from potluck.data.files import damaged_file, find_file, read_bytes
from potluck.data.sources.base import LoadRequest, Source

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """What differs between the two: CIFAR-100 records start with a coarse label that is not used."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    classes: int
    label_bytes: int
    normalise: Normalise


CIFAR10 = Layout(
    "cifar10",
    "cifar-10-batches-bin",
    tuple(f"data_batch_{part}.bin" for part in range(1, 6)),
    ("test_batch.bin",),
    "batches.meta.txt",
    10,
    1,
    Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
)
CIFAR100 = Layout(
    "cifar100",
    "cifar-100-binary",
    ("train.bin",),
    ("test.bin",),
    "fine_label_names.txt",
    100,
    2,
    Normalise((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)


def read_records(path: Path, label_bytes: int, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images `[n, 3, 32, 32]` and (fine) labels of one file."""
    content = np.frombuffer(read_bytes(path), np.uint8)
    record = label_bytes + PIXELS
    if len(content) == 0 or len(content) % record:
        raise damaged_file(path, f"{len(content):,} bytes, which is not a number of records of {record:,}")
    records = content.reshape(-1, record)
    labels = records[:, label_bytes - 1]
    if labels.max() >= classes:
        raise damaged_file(path, f"label {labels.max()} of {classes} classes")
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), labels


def _read(layout: Layout, paths: list[Path], names: Path) -> RawArrays:
    parts = [read_records(path, layout.label_bytes, layout.classes) for path in paths]
    class_names = tuple(read_bytes(names).decode().split())
    if len(class_names) != layout.classes:
        raise damaged_file(names, f"{len(class_names)} class names instead of {layout.classes}")
    train = sum(len(labels) for _, labels in parts[: len(layout.train)])
    x = np.concatenate([images for images, _ in parts])
    return RawArrays(x, np.concatenate([labels for _, labels in parts]), train, class_names=class_names)


def load(layout: Layout, request: LoadRequest) -> Data:
    """50,000 training and 10,000 test images of 32×32 colour pixels."""
    folder = request.root / layout.folder
    paths = [find_file(layout.name, (folder,), file) for file in layout.train + layout.test]
    names = find_file(layout.name, (folder,), layout.names)
    raw = read_cached(request.root, layout.name, [*paths, names], lambda: _read(layout, paths, names))
    return raw.data(layout.name, layout.normalise)


def _source(layout: Layout, about: str, archive: str, md5: str) -> Source:
    files = ", ".join((*layout.train, *layout.test, layout.names))
    url = f"https://www.cs.toronto.edu/~kriz/{archive}"
    download = Download(url, f"md5:{md5}", ".", f"{layout.folder}/{layout.test[0]}", archive=True)
    where = f"{layout.folder}/ with {files} (unpack the binary version, {archive})"
    return Source(layout.name, about, partial(load, layout), where, 60_000, (download,))


SOURCES = (
    _source(
        CIFAR10,
        "ten kinds of things, 50,000 + 10,000 of 32×32 in colour",
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
    ),
    _source(
        CIFAR100,
        "a hundred kinds of things, 50,000 + 10,000 of 32×32 in colour",
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
    ),
)
