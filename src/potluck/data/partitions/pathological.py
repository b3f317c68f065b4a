"""Few classes per client, in the two rules found in published code."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError, unknown
from potluck.data.partitions.rules import Partition, Rows, apportion, class_rows, split_by_counts

Rule = Literal["yi", "pfllib"]


@dataclass(frozen=True)
class Pathological(Partition):
    """Every client holds rows of `classes` classes only.

    `rule="yi"` (FedGH, pFedAFM): each class has about `classes * clients / C` slots; a client takes one slot
    of each of the classes with most slots left, and the owners of a class share it by u / sum(u) with
    u ~ U(0.4, 0.6). `rule="pfllib"` (FedL2G): classes are dealt in order to the first
    ceil(classes * clients / C) clients with room; all but the last of them get a random number of rows
    between a tenth of the even share and the even share, the last one the rest, so that sizes are very
    unequal. `min_size` is that rule's floor (divided by the number of classes) on a client's rows of a class.
    """

    classes: int
    rule: Rule = "yi"
    min_size: int = 40

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise PotluckError(f"Pathological classes is {self.classes}; every client needs at least 1.")
        if self.rule not in get_args(Rule):
            raise unknown("pathological rule", self.rule, get_args(Rule))

    def deal(
        self,
        labels: NDArray[np.generic],
        clients: int,
        rng: np.random.Generator,
        groups: NDArray[np.generic] | None,
    ) -> list[Rows]:
        """Return rows of a few classes for each client."""
        rows_by_class = class_rows(labels, rng)
        if self.classes > len(rows_by_class):
            raise PotluckError(
                f"Partition '{self}' asks for {self.classes} classes per client but the data have "
                f"{len(rows_by_class)}; ask for {len(rows_by_class)} or fewer."
            )
        sizes = np.array([len(rows) for rows in rows_by_class])
        counts = self.slots(sizes, clients, rng) if self.rule == "yi" else self.in_order(sizes, clients, rng)
        return split_by_counts(rows_by_class, counts)

    def slots(self, sizes: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Yi's rule. A client draws its classes at once, so it can never draw the same class twice.

        The published code draws them one after another and can; it also loses the slots that do not divide
        evenly. Here they go to random classes, and taking the fullest classes first always works out.
        """
        slots_left = np.full(len(sizes), self.classes * clients // len(sizes))
        slots_left[rng.permutation(len(sizes))[: self.classes * clients % len(sizes)]] += 1
        owners = np.zeros((clients, len(sizes)))
        for client in range(clients):
            chosen = np.lexsort((rng.random(len(sizes)), -slots_left))[: self.classes]
            owners[client, chosen] = rng.uniform(0.4, 0.6, size=self.classes)
            slots_left[chosen] -= 1
        counts = np.zeros(owners.shape, dtype=np.int64)
        for column in np.flatnonzero(owners.any(axis=0)):
            counts[:, column] = apportion(owners[:, column], int(sizes[column]))
        return counts

    def in_order(self, sizes: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """PFLlib's rule. Classes that find no client with room stay unused (none when C divides evenly)."""
        room = np.full(clients, self.classes)
        counts = np.zeros((clients, len(sizes)), dtype=np.int64)
        takers = ceil(clients / len(sizes) * self.classes)
        for column, size in enumerate(sizes):
            chosen = np.flatnonzero(room > 0)[:takers]
            if len(chosen) == 0:
                break
            even = int(size) / len(chosen)
            low, high = int(max(even / 10, self.min_size / len(sizes))), int(even)
            draws = rng.integers(min(low, max(high - 1, 0)), max(high, 1), size=len(chosen) - 1)
            counts[chosen[:-1], column] = draws
            counts[chosen[-1], column] = size - draws.sum()
            room[chosen] -= 1
        return counts

    def remedy(self) -> str:
        """Return what to do about a client without rows."""
        return "use fewer clients or more classes per client."

    def __str__(self) -> str:
        rule = "" if self.rule == "yi" else f",rule={self.rule}"
        return (
            f"pathological:{self.classes}{rule}{'' if self.min_size == 40 else f',min_size={self.min_size}'}"
        )
