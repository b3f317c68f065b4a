"""Image files to one uint8 array."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError, how_to_set
from potluck.data.files import unreadable_file

MAX_PIXELS = 80_000_000
"""Pixels of one picture; a large camera makes 60 million, which is 180 MB unpacked."""
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}


def list_images(folder: Path) -> list[Path]:
    """Return the image files directly inside a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def read_images(paths: Sequence[Path], size: int | None, grey: bool = False) -> NDArray[np.uint8]:
    """Return all images as `[n, channels, height, width]`, resized to `size`×`size` when a size is given."""
    first = read_image(paths[0], size, grey)
    images = np.empty((len(paths), *first.shape), np.uint8)
    for row, path in enumerate(paths):
        image = read_image(path, size, grey)
        if image.shape != first.shape:
            raise PotluckError(
                f"Image {str(path)!r} is {image.shape[2]}×{image.shape[1]} and {paths[0].name!r} is "
                f"{first.shape[2]}×{first.shape[1]}; bring all to one size: "
                f"{how_to_set('image_size', 'PIXELS')}."
            )
        images[row] = image
    return images


def read_image(path: Any, size: int | None, grey: bool = False) -> NDArray[np.uint8]:
    """Return one image (a file, a PIL image, or an array of bytes) as `[channels, height, width]`."""
    from PIL import Image

    try:
        with _opened(path) as file:
            _check_size(path, file.size)
            image = file.convert("L" if grey else "RGB")
            if size is not None and image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, dtype=np.uint8)
    except Image.DecompressionBombError:
        raise _too_large(path, "far more") from None
    except (OSError, SyntaxError, ValueError, TypeError) as problem:
        if not isinstance(path, Path):
            raise PotluckError(
                f"The image cannot be read ({problem}); give a file, or [h, w, 3] bytes."
            ) from None
        raise unreadable_file(path, str(problem)) from problem
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _opened(image: Any) -> AbstractContextManager[Any]:
    from PIL import Image

    if isinstance(image, Path):
        return Image.open(image)
    return nullcontext(image if hasattr(image, "convert") else Image.fromarray(np.asarray(image)))


def is_grey(path: Path) -> bool:
    """Return whether an image file holds grey levels only by its own declaration."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.mode in ("1", "L", "I", "I;16", "F")
    except Image.DecompressionBombError:
        raise _too_large(path, "far more") from None
    except (OSError, SyntaxError, ValueError) as problem:
        raise unreadable_file(path, str(problem)) from problem


def _check_size(path: Any, size: tuple[int, int]) -> None:
    """Before anything is unpacked: a few kilobytes can claim to be a picture of gigabytes."""
    if size[0] * size[1] > MAX_PIXELS:
        raise _too_large(path, f"{size[0]}×{size[1]}")


def _too_large(path: Any, what: str) -> PotluckError:
    return PotluckError(
        f"Image {str(path)!r} has {what} pixels where {MAX_PIXELS:,} are allowed; make the picture smaller."
    )
