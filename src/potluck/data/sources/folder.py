"""Images in class folders: `folder:PATH`, one folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from potluck.core.errors import PotluckError
from potluck.data.cache import Raw, cached
from potluck.data.dataset import Data
from potluck.data.sources.base import Request, Source
from potluck.data.sources.images import is_grey, list_images, read_images
from potluck.data.transforms import Normalise


def load(request: Request) -> Data:
    """`PATH/CLASS/*.png`, or `PATH/train/CLASS/*.png` beside `PATH/test/CLASS/*.png` (or `val`)."""
    path = Path(request.rest).expanduser()
    if not request.rest or not path.is_dir():
        raise PotluckError(
            f"Data 'folder:{request.rest}' need an existing folder of class folders; check the path."
        )
    train = path / "train" if (path / "train").is_dir() else path
    test = next((path / name for name in ("test", "val") if train != path and (path / name).is_dir()), None)
    names = [
        entry.name for entry in sorted(train.iterdir()) if entry.is_dir() and not entry.name.startswith(".")
    ]
    files, labels = _list(train, names)
    if not files:
        raise PotluckError(
            f"Folder {str(train)!r} has no images in class folders; put them in CLASS/NAME.png."
        )
    test_files, test_labels = ([], []) if test is None else _list(test, names)

    def read() -> Raw:
        x = read_images(files + test_files, request.image_size, is_grey(files[0]))
        return Raw(x, np.array(labels + test_labels), len(files), class_names=tuple(names))

    name = f"folder-{path.name}"
    raw = cached(request.root, name, files + test_files, read, request.image_size)
    return raw.data(f"folder:{path.name}", Normalise())


def _list(folder: Path, names: list[str]) -> tuple[list[Path], list[int]]:
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = list_images(folder / name) if (folder / name).is_dir() else []
        files += found
        labels += [label] * len(found)
    return files, labels


SOURCES = (
    Source("folder", "folder:PATH — your images, one folder per class", load, options=("image_size",)),
)
