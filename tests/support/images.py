"""Small image files in class folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PIL import Image


def write_classes(folder: Path, rows: Mapping[str, int], size: int = 8) -> Path:
    """Write so many grey images for each class; a class has one level of grey, and images differ a little."""
    for name, count in rows.items():
        (folder / name).mkdir(parents=True)
        level = 20 + 37 * (sum(map(ord, name)) % 6)
        for number in range(count):
            Image.new("L", (size, size), level + number % 5).save(folder / name / f"{number}.png")
    return folder
