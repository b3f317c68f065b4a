"""Locate and open data files; read numpy archives only after checking their sizes."""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError

BOMB_BYTES, BOMB_RATIO = 256 << 20, 200
"""An array of more bytes that was compressed more tightly than this is refused."""

_HEADERS: dict[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(path: Path, allowed: Collection[str] | None = None) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of an archive, or of the `known` names; a `ValueError` says what is wrong with the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if allowed is None or entry.filename.removesuffix(".npy") in allowed:
                    _check(archive, entry)
        with np.load(path, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files if allowed is None or name in allowed}
    except MemoryError:
        raise ValueError("it does not fit into memory; save fewer rows, or numbers of fewer bytes") from None
    except ValueError:
        raise
    except Exception as problem:  # a stranger's bytes: whatever they trigger, the file is at fault
        raise ValueError(f"{type(problem).__name__}: {problem}"[:200]) from None


def names_in(path: Path) -> list[str]:
    """Return the names of an archive's arrays."""
    with zipfile.ZipFile(path) as archive:
        return sorted(name.removesuffix(".npy") for name in archive.namelist())


def _check(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{entry.filename!r} has the .npy version {version[0]}.{version[1]}")
        shape, _, dtype = _HEADERS[version](file)
        claimed, size = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
    if not dtype.hasobject and claimed != size:
        raise ValueError(f"{entry.filename!r} claims {claimed} bytes and has {size}")
    if size > BOMB_BYTES and size > BOMB_RATIO * entry.compress_size:
        raise ValueError(
            f"{entry.filename!r} would grow {size // max(1, entry.compress_size)}-fold to {size / 2**30:.1f} GB; save "
            "such arrays uncompressed"
        )


def find_file(name: str, folders: Iterable[Path], file: str) -> Path:
    """Return the first of `folder/file` and `folder/file.gz` that exists, or an error that says where to put it."""
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
    """Return the whole content, unpacked when the name ends in .gz; a damaged archive is named."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (EOFError, zlib.error, OSError) as problem:
        raise damaged_file(path, str(problem)) from problem


def unreadable_file(path: Path, what: str) -> PotluckError:
    """Return the error for a file that may be the user's own: nothing is said about deleting it."""
    return PotluckError(
        f"File {str(path)!r} is damaged or incomplete ({what}); replace it by an intact copy, or move it elsewhere."
    )


def damaged_file(path: Path, what: str) -> PotluckError:
    """Return the error for a file that is there but cannot be right."""
    return PotluckError(
        f"File {str(path)!r} is damaged or incomplete ({what}); delete it and fetch it again."
    )
