"""Where data files are, and how to open them so that a broken one is named and never half-read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from potluck.core.errors import PotluckError


def find(name: str, folders: Iterable[Path], file: str) -> Path:
    """The first of `folder/file` and `folder/file.gz` that exists, or an error that says where to put it."""
    places = list(folders)
    for folder in places:
        for candidate in (folder / file, folder / f"{file}.gz"):
            if candidate.is_file():
                return candidate
    raise PotluckError(
        f"Data {name!r} need the file {file!r} (or {file + '.gz'!r}) in {str(places[0])!r}; "
        f"run 'potluck data prepare {name}' or put it there."
    )


def read_bytes(path: Path) -> bytes:
    """The whole content, unpacked when the name ends in .gz; a damaged archive is named."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (EOFError, zlib.error, OSError) as problem:
        raise damaged(path, str(problem)) from problem


def damaged(path: Path, what: str) -> PotluckError:
    """The error for a file that is there but cannot be right."""
    return PotluckError(
        f"File {str(path)!r} is damaged or incomplete ({what}); delete it and fetch it again."
    )
