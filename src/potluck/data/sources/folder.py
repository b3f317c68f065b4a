"""Images or texts in class folders: `folder:PATH`, one folder per class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from potluck.core.errors import PotluckError
from potluck.data.cache import RawArrays, read_cached
from potluck.data.dataset import Data, Normalise
from potluck.data.raw import image_rows
from potluck.data.sources.base import LoadRequest, Source
from potluck.data.sources.images import is_grey, list_images, read_images
from potluck.data.sources.text import LENGTH, WORDS, decode, encode_texts

Rows = list[tuple[Path, int]]


def load(request: LoadRequest) -> Data:
    """`PATH/CLASS/*.png` (or `.txt`), or the same below `PATH/train`, `PATH/test` and perhaps `PATH/valid`.

    Rows of `valid` (or `val`, `validation`) are training rows where there is a test part, else they are the test part.
    """
    path = Path(request.argument).expanduser()
    if not request.argument or not path.is_dir():
        raise PotluckError(
            f"Data 'folder:{request.argument}' need an existing folder of class folders; check the path."
        )
    first, more, test = _parts(path)
    names = [
        entry.name for entry in sorted(first.iterdir()) if entry.is_dir() and not entry.name.startswith(".")
    ]
    for list_files, read in ((list_images, _pictures), (list_texts, _texts)):
        train = [pair for part in (first, *more) for pair in _list(part, names, list_files)]
        if train:
            test_pairs = [pair for part in test for pair in _list(part, names, list_files)]
            return read(request, path.name, train, test_pairs, names)
    raise PotluckError(
        f"Folder {str(first)!r} has no images (or .txt files) in class folders; put them in CLASS/NAME.png."
    )


def _parts(path: Path) -> tuple[Path, list[Path], list[Path]]:
    """Return the folder that names the classes, further ones with training rows, and those of the test part."""
    train = path / "train"
    if not train.is_dir():
        return path, [], []
    valid = [path / name for name in ("valid", "val", "validation") if (path / name).is_dir()]
    test = path / "test"
    return (train, valid, [test]) if test.is_dir() else (train, [], valid)


def _pictures(request: LoadRequest, name: str, train: Rows, test: Rows, names: list[str]) -> Data:
    files, labels = zip(*train, *test, strict=True)

    def read() -> RawArrays:
        x = read_images(files, request.image_size, is_grey(files[0]))
        raw = image_rows(x.shape[1:], x.dtype, resize=request.image_size is not None)
        return RawArrays(x, np.array(labels), len(train), class_names=tuple(names), raw=raw)

    raw = read_cached(request.root, f"folder-{name}", files, read, request.image_size)
    return raw.data(f"folder:{name}", Normalise())


def _texts(request: LoadRequest, name: str, train: Rows, test: Rows, names: list[str]) -> Data:
    files = [file for file, _ in (*train, *test)]

    def read() -> RawArrays:
        training, held_out = ([(label, decode(file)) for file, label in rows] for rows in (train, test))
        return encode_texts(training, held_out, names, words=WORDS, length=LENGTH)

    return read_cached(request.root, f"folder-{name}", files, read).data(f"folder:{name}", None)


def list_texts(folder: Path) -> list[Path]:
    """Return the text files directly inside a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() == ".txt")


def _list(folder: Path, names: list[str], list_files: Callable[[Path], list[Path]]) -> Rows:
    return [
        (file, label)
        for label, name in enumerate(names)
        if (folder / name).is_dir()
        for file in list_files(folder / name)
    ]


SOURCES = (
    Source(
        "folder",
        "folder:PATH — your images or .txt files, one folder per class",
        load,
        options=("image_size",),
    ),
)
