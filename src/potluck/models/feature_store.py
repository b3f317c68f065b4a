"""Features of frozen networks on disk: each row of a data set is computed once per network, then read by all runs.

A folder belongs to one network with its weights and its input format. It holds pairs of files: keys of rows with check
sums, and their features. Any number of processes may add pairs at the same time; a damaged pair is removed and its rows
are computed again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEY_BYTES = 16
SEGMENT_ROWS = 1024
"""Rows that are computed between two writes: an interrupted computation is continued there."""

_log = logging.getLogger("potluck")
Features = NDArray[np.float32]
Compute = Callable[[Sequence[int]], Tensor]
"""Features of the rows at some places of a request, `[rows, size]`."""


def row_keys(x: Tensor) -> list[bytes]:
    """Return a digest of each row of model inputs."""
    rows = (x.float() if x.is_floating_point() else x).detach().cpu().contiguous().numpy()
    return [_digest(row) for row in rows]


def _digest(row: NDArray[np.generic]) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=KEY_BYTES).digest()


class FeatureStore:
    """The features of one network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, keys: Sequence[bytes], compute: Compute, name: str) -> Features:
        """Return the features of the rows with these keys; rows that are not on disk are computed and added."""
        stored = self._load(set(keys))
        first = {key: place for place, key in reversed(list(enumerate(keys)))}
        missing = sorted(place for key, place in first.items() if key not in stored)
        if missing:
            _log.info("computing the features of %d rows with %s, once for all runs", len(missing), name)
        for start in range(0, len(missing), SEGMENT_ROWS):
            places = missing[start : start + SEGMENT_ROWS]
            features = compute(places).detach().cpu().float().contiguous().numpy()
            names = [keys[place] for place in places]
            self._add(names, features)
            stored.update(zip(names, features, strict=True))
        return np.stack([stored[key] for key in keys]) if keys else np.zeros((0, 0), np.float32)

    def _load(self, keys: set[bytes]) -> dict[bytes, Features]:
        """Return the wanted rows that are on disk and whose check sums are right."""
        stored: dict[bytes, Features] = {}
        for file in sorted(self.folder.glob("keys-*.npy")):
            partner = file.with_name(file.name.replace("keys-", "features-"))
            try:
                stored.update(self._read_pair(file, partner, keys - stored.keys()))
            except FileNotFoundError:
                continue  # another process removed it
            except Exception as error:  # damaged headers make numpy raise almost anything
                _log.warning("removed damaged features in %s (%s); they are computed again", file, error)
                file.unlink(missing_ok=True)
                partner.unlink(missing_ok=True)
        return stored

    def _read_pair(self, file: Path, partner: Path, keys: set[bytes]) -> dict[bytes, Features]:
        table = np.load(file, allow_pickle=False)
        if table.dtype != np.uint8 or table.ndim != 2 or table.shape[1] != 2 * KEY_BYTES:
            raise ValueError("the table of keys has another form")
        features = np.load(partner, allow_pickle=False, mmap_mode="r")
        if features.dtype != np.float32 or features.ndim != 2 or len(features) != len(table):
            raise ValueError("features and keys do not fit each other")
        stored = {}
        for place, entry in enumerate(table):
            key = entry[:KEY_BYTES].tobytes()
            if key in keys:
                row = np.array(features[place])
                if _digest(row) != entry[KEY_BYTES:].tobytes():
                    raise ValueError(f"row {place} was changed")
                stored[key] = row
        return stored

    def _add(self, keys: Sequence[bytes], features: Features) -> None:
        """Write a pair of files, the keys last; where nothing can be written, features stay in memory alone."""
        joined = b"".join(key + _digest(row) for key, row in zip(keys, features, strict=True))
        table = np.frombuffer(joined, np.uint8).reshape(len(keys), -1)
        number = uuid.uuid4().hex
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for kind, array in (("features", features), ("keys", table)):
                temporary = self.folder / f".{kind}-{number}.npy"
                np.save(temporary, array, allow_pickle=False)
                os.replace(temporary, self.folder / f"{kind}-{number}.npy")
        except OSError as error:
            _log.warning(
                "features cannot be kept in %s (%s); they are computed again next time", self.folder, error
            )


class FeatureTable:
    """The features of rows by their numbers; copies of a model share one table."""

    def __init__(self, positions: Tensor, features: Tensor) -> None:
        self.positions, self.features = positions, features

    @property
    def width(self) -> int:
        """The number of features."""
        return self.features.shape[1]

    def rows(self, x: Tensor) -> Tensor:
        """Return the features of rows `[batch, …]` whose first column is their number."""
        return self.features[self.positions[x[:, 0]]]

    def __deepcopy__(self, memo: object) -> FeatureTable:
        return self


def to_tensor(features: Features, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return features as a tensor in a task's precision."""
    return torch.from_numpy(features).to(device=device, dtype=dtype)
