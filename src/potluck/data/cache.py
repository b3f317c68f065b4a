"""Read a data set once, then share it between processes as memory-mapped .npy files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from potluck.core.samples import Transform
from potluck.data.dataset import Data
from potluck.data.raw import RawInput, describe_raw, image_rows, read_raw

FORMAT = 3  # raise it when the meaning of the files below changes


@dataclass(frozen=True)
class RawArrays:
    """What a reader gives: all rows in one array, the training rows first, the test rows after them."""

    x: NDArray[np.generic]
    y: NDArray[np.generic]
    train: int
    groups: NDArray[np.generic] | None = None
    class_names: tuple[str, ...] = ()
    vocabulary: int | None = None
    raw: RawInput | None = None
    group_names: tuple[str, ...] = ()

    def data(self, name: str, transform: Transform | None, num_classes: int | None = None) -> Data:
        """Return the data set as tensors over the same memory."""
        x, y = _tensor(self.x), _tensor(self.y)
        groups = None if self.groups is None else _tensor(self.groups)
        split = self.train < len(y)
        return Data(
            name,
            x[: self.train],
            y[: self.train],
            num_classes or len(self.class_names) or int(y.max()) + 1,
            tuple(x.shape[1:]),
            test_x=x[self.train :] if split else None,
            test_y=y[self.train :] if split else None,
            groups=None if groups is None else groups[: self.train],
            test_groups=groups[self.train :] if split and groups is not None else None,
            transform=transform,
            class_names=self.class_names,
            vocabulary=self.vocabulary,
            raw=self.raw or image_rows(x.shape[1:], x.dtype),
            group_names=self.group_names,
        )


def read_cached(
    root: Path, name: str, sources: Iterable[Path], read: Callable[[], RawArrays], *choices: object
) -> RawArrays:
    """`read()` the first time; afterwards its arrays, mapped from `<root>/.potluck` and shared by all processes.

    The copy is used as long as the source files keep their names, sizes and times and the `choices` (an image
    size, say) are the same. Where the root cannot be written, the arrays simply stay in memory.
    """
    folder = root / ".potluck" / f"{name}-{_stamp(sources, choices)}"
    cached = _open(folder)
    if cached is not None:
        return cached
    raw = read()
    raw = replace(raw, y=raw.y.astype(np.int64))
    try:
        _write(folder, raw)
    except OSError:
        return raw
    return _open(folder) or raw


def _stamp(sources: Iterable[Path], choices: tuple[object, ...]) -> str:
    lines = [f"{FORMAT} {choices!r}"]
    for path in sources:
        status = path.stat()
        lines.append(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _write(folder: Path, raw: RawArrays) -> None:
    """Write beside the target and rename, so that no process sees half a copy, and no other user a private one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    temporary.mkdir(mode=0o700)
    try:
        arrays = {"x": raw.x, "y": raw.y} | ({} if raw.groups is None else {"groups": raw.groups})
        for key, array in arrays.items():
            np.save(temporary / f"{key}.npy", np.ascontiguousarray(array), allow_pickle=False)
        meta = {"train": raw.train, "class_names": raw.class_names, "vocabulary": raw.vocabulary}
        meta |= {"raw": describe_raw(raw.raw), "group_names": raw.group_names}
        (temporary / "meta.json").write_text(json.dumps(meta))
        os.replace(temporary, folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.is_dir():  # otherwise another process was faster, and its copy is as good
            raise


def _open(folder: Path) -> RawArrays | None:
    """Return the kept arrays, or nothing when there are none; a copy that cannot be opened is thrown away."""
    if not folder.is_dir():
        return None
    try:
        meta = json.loads((folder / "meta.json").read_text())
        x, y = _map(folder / "x.npy"), _map(folder / "y.npy")
        groups = _map(folder / "groups.npy") if (folder / "groups.npy").exists() else None
        if len(x) != len(y):
            raise ValueError("rows and labels differ in number")
        raw = read_raw(meta["raw"])
    except (OSError, ValueError, LookupError, TypeError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    names, whose = tuple(meta["class_names"]), tuple(meta["group_names"])
    return RawArrays(x, y, int(meta["train"]), groups, names, meta["vocabulary"], raw, whose)


def _map(path: Path) -> NDArray[np.generic]:
    # Copy-on-write: pages are shared while they are only read, and torch gets the writable memory it asks for.
    array: NDArray[np.generic] = np.load(path, mmap_mode="c", allow_pickle=False)
    return array


def _tensor(array: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
