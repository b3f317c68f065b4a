"""A user's own assignment of rows to clients, read from JSON, CSV or npz."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.data.files import read_arrays
from potluck.data.partitions.rules import Partition, Rows


@dataclass(frozen=True)
class FromFile(Partition):
    """Clients as a file lists them; the file decides how many there are.

    JSON: a list of lists of row numbers, or an object `{"name": [row, …], …}` in the order of clients.
    CSV: a header line with the columns `row` and `client`, then one line per row; clients are ordered by
    number when all are numbers, by name otherwise. npz: one integer array of row numbers per client, in the
    order they were saved. Rows that the file leaves out stay unused.
    """

    path: str

    def deal(
        self,
        labels: NDArray[np.generic],
        clients: int,
        rng: np.random.Generator,
        groups: NDArray[np.generic] | None,
    ) -> list[Rows]:
        """Return the rows that the file lists for each client."""
        parts = self.read()
        if len(parts) != clients:
            raise PotluckError(
                f"Partition file {self.path!r} lists {len(parts)} clients but clients is {clients}; "
                f"set clients to {len(parts)}."
            )
        rows = np.concatenate(parts)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(labels)):
            row = int(rows[(rows < 0) | (rows >= len(labels))][0])
            raise PotluckError(
                f"Partition file {self.path!r} names row {row}; the data have rows 0 to {len(labels) - 1}."
            )
        values, times = np.unique(rows, return_counts=True)
        if np.any(times > 1):
            raise PotluckError(
                f"Partition file {self.path!r} gives row {values[times > 1][0]} twice; give each row once."
            )
        return parts

    def read(self) -> list[Rows]:
        """Return the row numbers of each client as the file has them."""
        path = Path(self.path).expanduser()
        readers = {".json": _read_json, ".csv": _read_csv, ".npz": _read_npz}
        if path.suffix not in readers:
            raise PotluckError(f"Partition file {self.path!r} must end in .json, .csv or .npz.")
        if not path.is_file():
            raise PotluckError(f"Partition file {self.path!r} does not exist; check the path.")
        try:
            parts = readers[path.suffix](path)
            return [_whole(part) for part in parts]
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise PotluckError(
                f"Partition file {self.path!r} cannot be read ({problem}); "
                "see the formats of potluck.from_file."
            ) from problem

    def remedy(self) -> str:
        """Return what to do about a client without rows."""
        return "give it rows or take it out of the file."

    def __str__(self) -> str:
        return f"file:{self.path}"


def _whole(part: object) -> Rows:
    values = np.asarray(part)
    if values.ndim != 1 or (len(values) and not np.issubdtype(values.dtype, np.integer)):
        raise ValueError("row numbers must be a flat list of whole numbers")
    return values.astype(np.int64)


def _read_json(path: Path) -> list[object]:
    content = parse_json(read_text(path, 1 << 30))
    return list(content.values()) if isinstance(content, dict) else list(content)


def _read_csv(path: Path) -> list[object]:
    with path.open(newline="") as file:
        lines = [(line["client"].strip(), int(line["row"])) for line in csv.DictReader(file)]
    names = {client for client, _ in lines}
    numbers = all(name.lstrip("-").isdigit() for name in names)
    rows: dict[str, list[int]] = {name: [] for name in sorted(names, key=int if numbers else str)}
    for client, row in lines:
        rows[client].append(row)
    return list(rows.values())


def _read_npz(path: Path) -> list[object]:
    return list(read_arrays(path).values())
