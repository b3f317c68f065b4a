"""The rules that deal rows to clients: evenly, by who produced them, or with a skew of classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from potluck.core.errors import PotluckError, unknown
from potluck.core.random import derive_seed
from potluck.core.samples import Samples

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

    def seen(self, samples: list[Samples], seed: int, input_shape: tuple[int, ...]) -> list[Samples]:
        """Each client's samples in its own way of seeing; as they are unless the rule changes them."""
        return samples

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
        rows_by_class = class_rows(labels, rng)
        if self.classes > len(rows_by_class):
            raise PotluckError(
                f"Partition '{self}' asks for {self.classes} classes per client but the data have "
                f"{len(rows_by_class)}; ask for {len(rows_by_class)} or fewer."
            )
        sizes = np.array([len(rows) for rows in rows_by_class])
        counts = self.slots(sizes, clients, rng) if self.rule == "yi" else self.in_order(sizes, clients, rng)
        return deal_counts(rows_by_class, counts)

    def slots(self, sizes: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Yi's rule. A client draws its classes at once, so it can never draw the same class twice.

        The published code draws them one after another and can; it also loses the slots that do not divide
        evenly. Here they go to random classes, and taking the fullest classes first always works out.
        """
        left = np.full(len(sizes), self.classes * clients // len(sizes))
        left[rng.permutation(len(sizes))[: self.classes * clients % len(sizes)]] += 1
        owners = np.zeros((clients, len(sizes)))
        for client in range(clients):
            chosen = np.lexsort((rng.random(len(sizes)), -left))[: self.classes]
            owners[client, chosen] = rng.uniform(0.4, 0.6, size=self.classes)
            left[chosen] -= 1
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
            given = rng.integers(min(low, max(high - 1, 0)), max(high, 1), size=len(chosen) - 1)
            counts[chosen[:-1], column] = given
            counts[chosen[-1], column] = size - given.sum()
            room[chosen] -= 1
        return counts

    def remedy(self) -> str:
        return "use fewer clients or more classes per client."

    def __str__(self) -> str:
        rule = "" if self.rule == "yi" else f",rule={self.rule}"
        return (
            f"pathological:{self.classes}{rule}{'' if self.min_size == 40 else f',min_size={self.min_size}'}"
        )
