"""What every partition rule shares: the checks before and after dealing rows to clients."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from potluck.core.errors import PotluckError
from potluck.core.random import derive_seed

Rows = NDArray[np.int64]


class Partition(ABC):
    """A rule that deals the rows of a data set to clients.

    Rules are frozen dataclasses of numbers: comparable, printable, and free of state. `str(rule)` is the
    short form that `parse_partition` reads back.
    """

    def assign(
        self, labels: ArrayLike, clients: int, seed: int = 0, groups: ArrayLike | None = None
    ) -> list[Rows]:
        """The sorted row numbers of each client; no row goes to two clients and no client stays empty."""
        values = np.asarray(labels)
        if clients < 1:
            raise PotluckError(f"clients is {clients}; there must be at least 1.")
        if clients > len(values):
            raise PotluckError(
                f"clients is {clients} but the data have only {len(values)} rows; "
                f"use {len(values)} clients or fewer."
            )
        who = None if groups is None else np.asarray(groups)
        rng = np.random.default_rng(derive_seed("partition", seed))
        parts = [np.sort(part).astype(np.int64, copy=False) for part in self.deal(values, clients, rng, who)]
        for client, part in enumerate(parts):
            if len(part) == 0:
                raise PotluckError(f"Partition '{self}' leaves client {client} without rows; {self.remedy()}")
        return parts

    @abstractmethod
    def deal(
        self,
        labels: NDArray[np.generic],
        clients: int,
        rng: np.random.Generator,
        groups: NDArray[np.generic] | None,
    ) -> list[Rows]:
        """The rows of each client, in any order."""

    def remedy(self) -> str:
        """What to do when a client stays empty."""
        return "use fewer clients or more data."


def class_rows(labels: NDArray[np.generic], rng: np.random.Generator) -> list[Rows]:
    """The rows of each class, ascending by class, each in random order."""
    order = np.argsort(labels, kind="stable")
    _, starts = np.unique(labels[order], return_index=True)
    return [rng.permutation(rows) for rows in np.split(order, starts[1:])]


def deal_counts(rows_by_class: list[Rows], counts: NDArray[np.int64]) -> list[Rows]:
    """Hand out each class's rows in turn: `counts[client, class]` of them to each client."""
    parts: list[list[Rows]] = [[] for _ in counts]
    for column, rows in enumerate(rows_by_class):
        pieces = np.split(rows, np.cumsum(counts[:, column]))
        for part, piece in zip(parts, pieces, strict=False):  # the last piece is what nobody gets
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def apportion(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers that add up to `total` and differ from the shares of it by less than one each."""
    edges = np.floor(np.cumsum(shares) / shares.sum() * total + 1e-9).astype(np.int64)
    edges[-1] = total
    counts: NDArray[np.int64] = np.diff(edges, prepend=0)
    return counts
