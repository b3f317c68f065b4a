"""Label skew by Dirichlet shares, with the cap and the minimum size that the papers' code uses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError
from potluck.data.partitions.base import Partition, Rows, apportion, class_rows, deal_counts

ATTEMPTS = 1000


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is shared out by one draw of Dirichlet(alpha, …, alpha) over the clients.

    `capped`: a client that already holds its even share n/N of all rows gets nothing of the later classes,
    which keeps sizes comparable. The whole draw is repeated until every client has `min_size` rows
    (10 in FedIN, 40 in FedL2G).
    """

    alpha: float
    min_size: int = 10
    capped: bool = True

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise PotluckError(f"Dirichlet alpha is {self.alpha}; it must be greater than 0.")
        if self.min_size < 1:
            raise PotluckError(f"Dirichlet min_size is {self.min_size}; it must be at least 1.")

    def deal(
        self,
        labels: NDArray[np.generic],
        clients: int,
        rng: np.random.Generator,
        groups: NDArray[np.generic] | None,
    ) -> list[Rows]:
        rows_by_class = class_rows(labels, rng)
        class_sizes = np.array([len(rows) for rows in rows_by_class])
        if clients * self.min_size <= len(labels):
            for _ in range(ATTEMPTS):
                counts = self.draw(class_sizes, clients, rng)
                if counts.sum(axis=1).min() >= self.min_size:
                    return deal_counts(rows_by_class, counts)
        raise PotluckError(
            f"Partition '{self}' found no draw in which each of {clients} clients has {self.min_size} of the "
            f"{len(labels)} rows; use fewer clients, a larger alpha or a smaller min_size."
        )

    def draw(
        self, class_sizes: NDArray[np.int64], clients: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """One draw of `[client, class]` counts."""
        shares = rng.dirichlet(np.full(clients, self.alpha), size=len(class_sizes))
        counts = np.zeros((clients, len(class_sizes)), dtype=np.int64)
        held = np.zeros(clients, dtype=np.int64)
        even = class_sizes.sum() / clients
        for column, size in enumerate(class_sizes):
            wanted = shares[column]
            if self.capped:
                open_ = held < even
                wanted = wanted * open_
                if wanted.sum() <= 0:  # all the mass fell on full clients: the open ones share evenly
                    wanted = open_.astype(np.float64)
            counts[:, column] = apportion(wanted, int(size))
            held += counts[:, column]
        return counts

    def remedy(self) -> str:
        return "use fewer clients or a larger alpha."

    def __str__(self) -> str:
        size = "" if self.min_size == 10 else f",min_size={self.min_size}"
        return f"dirichlet:{self.alpha:g}{size}{'' if self.capped else ',capped=false'}"
