"""Partitions that look at no label: random, in file order, or by who produced the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from potluck.core.errors import PotluckError
from potluck.data.partitions.base import Partition, Rows


@dataclass(frozen=True)
class Iid(Partition):
    """A random permutation cut into equal pieces (sizes differ by one row at most)."""

    def deal(
        self,
        labels: NDArray[np.generic],
        clients: int,
        rng: np.random.Generator,
        groups: NDArray[np.generic] | None,
    ) -> list[Rows]:
        return list(np.array_split(rng.permutation(len(labels)), clients))

    def __str__(self) -> str:
        return "iid"


@dataclass(frozen=True)
class Contiguous(Partition):
    """Equal pieces in file order (FedHe): client 0 gets the first rows."""

    def deal(
        self,
        labels: NDArray[np.generic],
        clients: int,
        rng: np.random.Generator,
        groups: NDArray[np.generic] | None,
    ) -> list[Rows]:
        return list(np.array_split(np.arange(len(labels)), clients))

    def __str__(self) -> str:
        return "contiguous"


@dataclass(frozen=True)
class Natural(Partition):
    """One client per person, writer or device that produced the rows, in the order of their ids.

    With fewer clients than persons the first ones take part and the others' rows stay unused.
    """

    def deal(
        self,
        labels: NDArray[np.generic],
        clients: int,
        rng: np.random.Generator,
        groups: NDArray[np.generic] | None,
    ) -> list[Rows]:
        if groups is None:
            raise PotluckError(
                "Partition 'natural' needs data that say who produced each row (such as 'har'); "
                "choose another partition or give the data groups."
            )
        people = np.unique(groups)
        if clients > len(people):
            raise PotluckError(
                f"Partition 'natural' finds {len(people)} persons in the data but clients is {clients}; "
                f"use {len(people)} clients or fewer."
            )
        return [np.flatnonzero(groups == person) for person in people[:clients]]

    def __str__(self) -> str:
        return "natural"


def number_of_groups(groups: ArrayLike | None) -> int | None:
    """How many clients a natural partition can have, or nothing without groups."""
    return None if groups is None else len(np.unique(np.asarray(groups)))
