"""Tiny ImageNet as published: tiny-imagenet-200 with its train and val folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from potluck.data.cache import RawArrays, read_cached
from potluck.data.dataset import Data, Normalise
from potluck.data.fetch import Download
from potluck.data.files import damaged_file, find_file, read_bytes
from potluck.data.raw import image_rows
from potluck.data.sources.base import LoadRequest, Source
from potluck.data.sources.images import list_images, read_images

NAME = "tiny-imagenet"
FOLDER = "tiny-imagenet-200"


def _read(folder: Path, classes: list[str], size: int | None) -> RawArrays:
    files: list[Path] = []
    labels: list[int] = []
    for label, wnid in enumerate(classes):
        images = folder / "train" / wnid / "images"
        listed = list_images(images) if images.is_dir() else []
        if not listed:
            raise damaged_file(images, "no training images")
        files += listed
        labels += [label] * len(listed)
    train = len(files)
    notes = folder / "val" / "val_annotations.txt"
    for line in read_bytes(notes).decode().splitlines():
        name, wnid = [*line.split("\t"), ""][:2]
        if wnid not in classes:
            raise damaged_file(notes, f"the line {line[:40]!r} names no known class")
        files.append(folder / "val" / "images" / name)
        labels.append(classes.index(wnid))
    x = read_images(files, size)
    raw = image_rows(x.shape[1:], x.dtype, resize=size is not None)
    return RawArrays(x, np.array(labels), train, class_names=tuple(classes), raw=raw)


def load(request: LoadRequest) -> Data:
    """100,000 training images of 64×64; the labelled validation part serves as test part."""
    folder = request.root / FOLDER
    wnids = find_file(NAME, (folder,), "wnids.txt")
    notes = find_file(NAME, (folder / "val",), "val_annotations.txt")
    classes = sorted(read_bytes(wnids).decode().split())
    folders = [folder / "train" / wnid / "images" for wnid in classes]
    sources = [wnids, notes, *(path for path in folders if path.is_dir())]
    raw = read_cached(
        request.root, NAME, sources, lambda: _read(folder, classes, request.image_size), request.image_size
    )
    return raw.data(NAME, Normalise((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))


SOURCES = (
    Source(
        NAME,
        "200 kinds of things, 100,000 + 10,000 of 64×64 in colour",
        load,
        f"{FOLDER}/ with wnids.txt, train/ and val/ as {FOLDER}.zip unpacks them",
        110_000,
        (
            Download(
                f"http://cs231n.stanford.edu/{FOLDER}.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                ".",
                f"{FOLDER}/wnids.txt",
                archive=True,
            ),
        ),
        ("image_size",),
    ),
)
