"""How rows are dealt: to clients by a rule, then each client's own into training, validation and test rows."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from potluck.core.errors import PotluckError
from potluck.core.random import add_up, derive_seed
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
        """Return the sorted row numbers of each client; no row goes to two clients and no client stays empty."""
        values = np.asarray(labels)
        if clients < 1:
            raise PotluckError(f"clients is {clients}; there must be at least 1.")
        if clients > len(values):
            raise PotluckError(
                f"clients is {clients} but the data have only {len(values)} rows; "
                f"use {len(values)} clients or fewer."
            )
        group_ids = None if groups is None else np.asarray(groups)
        rng = np.random.default_rng(derive_seed("partition", seed))
        parts = [np.array(part, dtype=np.int64) for part in self.deal(values, clients, rng, group_ids)]
        for part in parts:
            part.sort()
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
        """Return the rows of each client, in any order."""

    def transform_samples(
        self, samples: list[Samples], seed: int, input_shape: tuple[int, ...]
    ) -> list[Samples]:
        """Return each client's samples in its own way of seeing; as they are unless the rule changes them."""
        return samples

    def remedy(self) -> str:
        """Return what to do when a client stays empty."""
        return "use fewer clients or more data."


def class_rows(labels: NDArray[np.generic], rng: np.random.Generator) -> list[Rows]:
    """Return the rows of each class, ascending by class, each in random order."""
    order = np.argsort(labels, kind="stable")
    _, starts = np.unique(labels[order], return_index=True)
    return [rng.permutation(rows) for rows in np.split(order, starts[1:])]


def pieces(rows: Rows, sizes: Iterable[int]) -> list[Rows]:
    """Split rows into consecutive pieces of these sizes, many times as fast as np.split for many pieces."""
    return [rows[begin:end] for begin, end in itertools.pairwise(itertools.accumulate(sizes, initial=0))]


def split_evenly(rows: Rows, clients: int) -> list[Rows]:
    """Equal pieces; the first ones get a row more each where it does not come out even."""
    size, more = divmod(len(rows), clients)
    return pieces(rows, [size + 1] * more + [size] * (clients - more))


def split_by_counts(rows_by_class: list[Rows], counts: NDArray[np.int64]) -> list[Rows]:
    """Hand out each class's rows in turn: `counts[client, class]` of them to each client; the rest stays unused."""
    clients = np.arange(len(counts))
    owners = [
        np.repeat(clients, column)[: len(rows)] for rows, column in zip(rows_by_class, counts.T, strict=True)
    ]
    class_parts = [rows[: len(owner)] for rows, owner in zip(rows_by_class, owners, strict=True)]
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")  # client by client, the classes of each in turn
    return pieces(np.concatenate(class_parts)[order], np.bincount(owner, minlength=len(counts)).tolist())


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
        """Return equal pieces of a random permutation."""
        return split_evenly(rng.permutation(len(labels)), clients)

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
        """Return equal pieces in file order."""
        return split_evenly(np.arange(len(labels)), clients)

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
        """Return the rows of each person, writer or device."""
        if groups is None:
            raise PotluckError(
                "Partition 'natural' needs data that say who produced each row (such as 'har'); "
                "choose another partition or give the data groups."
            )
        people, sizes = np.unique(groups, return_counts=True)
        if clients > len(people):
            raise PotluckError(
                f"Partition 'natural' finds {len(people)} persons in the data but clients is {clients}; "
                f"use {len(people)} clients or fewer."
            )
        return pieces(np.argsort(groups, kind="stable"), sizes[:clients].tolist())

    def __str__(self) -> str:
        return "natural"


def number_of_groups(groups: ArrayLike | None) -> int | None:
    """Return how many clients a natural partition can have, or nothing without groups."""
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
        """Return rows in class shares drawn from a Dirichlet distribution, until every client has `min_size`."""
        rows_by_class = class_rows(labels, rng)
        class_sizes = np.array([len(rows) for rows in rows_by_class])
        if clients * self.min_size <= len(labels):
            for _ in range(ATTEMPTS):
                counts = self.draw(class_sizes, clients, rng)
                if counts.sum(axis=1).min() >= self.min_size:
                    return split_by_counts(rows_by_class, counts)
        raise PotluckError(
            f"Partition '{self}' found no draw in which each of {clients} clients has {self.min_size} of the "
            f"{len(labels)} rows; use fewer clients, a larger alpha or a smaller min_size."
        )

    def draw(
        self, class_sizes: NDArray[np.int64], clients: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return one draw of `[client, class]` counts."""
        shares = rng.dirichlet(np.full(clients, self.alpha), size=len(class_sizes))
        counts = np.zeros((clients, len(class_sizes)), dtype=np.int64)
        client_sizes = np.zeros(clients, dtype=np.int64)
        even = class_sizes.sum() / clients
        for column, size in enumerate(class_sizes):
            target = shares[column]
            if self.capped:
                open_ = client_sizes < even
                target = target * open_
                if target.sum() <= 0:  # all the mass fell on full clients: the open ones share evenly
                    target = open_.astype(np.float64)
            counts[:, column] = apportion(target, int(size))
            client_sizes += counts[:, column]
        return counts

    def remedy(self) -> str:
        """Return what to do about a client without rows."""
        return "use fewer clients or a larger alpha."

    def __str__(self) -> str:
        size = "" if self.min_size == 10 else f",min_size={self.min_size}"
        return f"dirichlet:{self.alpha:g}{size}{'' if self.capped else ',capped=false'}"


# -- a client's own rows ------------------------------------------------------------------------------------


MAX_SHARE_SUM = 20
"""Parts with a larger sum are taken for percents, which a slip of the finger may keep from adding up."""


def split_client(
    index: Rows, parts: Sequence[float] = (0.75, 0.25), *, seed: int, client: object
) -> tuple[Rows, ...]:
    """Cut a client's rows at random into `parts`: training first, test last, validation between.

    The cut depends on the seed and the client's name alone, never on which client was built first. Every
    client keeps at least one training row and, with two rows or more, at least one test row.
    """
    if len(index) == 0:
        raise PotluckError(f"Client {client!r} has no rows to split; give every client at least one.")
    rng = np.random.default_rng(derive_seed("split", seed, client))
    order = rng.permutation(np.sort(np.asarray(index, dtype=np.int64)))
    ends = np.cumsum(_sizes(len(order), parts))[:-1]
    return tuple(np.sort(part) for part in np.split(order, ends))


def split_in_three(
    index: Rows, split: str, *, seed: int, client: object, test_apart: bool = False
) -> tuple[Rows, Rows, Rows]:
    """Return a client's training, validation and test rows by a text such as `"8:1:1"`; a part may be empty.

    With `test_apart` the test rows come from elsewhere, and these are cut into training and validation alone.
    """
    parts = parse_split(split)
    nothing = index[:0]
    validation = parts[1] if len(parts) == 3 else 0.0
    if test_apart and not validation:
        return index, nothing, nothing
    if test_apart:
        train, middle = split_client(index, parts[:2], seed=seed, client=client)
        return train, middle, nothing
    pieces = split_client(index, parts, seed=seed, client=client)
    return pieces[0], (pieces[1] if validation else nothing), (pieces[-1] if len(pieces) > 1 else nothing)


def _sizes(n: int, parts: Sequence[float]) -> list[int]:
    total = add_up(parts)
    edges = np.rint(np.cumsum(parts) / total * n).astype(int)
    sizes: list[int] = np.diff(edges, prepend=0).tolist()
    if sizes[0] == 0:
        sizes[int(np.argmax(sizes))] -= 1
        sizes[0] = 1
    if len(sizes) > 1 and n > 1 and sizes[-1] == 0:
        spare = [sizes[0] - 1, *sizes[1:]]
        sizes[max(range(len(sizes)), key=lambda part: (spare[part], part))] -= 1  # validation before training
        sizes[-1] = 1
    return sizes


def parse_split(text: str) -> tuple[float, ...]:
    """`"8:1:1"`, `"8:2"` or `"75:25"` as fractions; `"shared"` keeps all rows for training.

    With `"shared"` the test set is common to all clients: the publisher's test part.
    """
    if text == "shared":
        return (1.0,)
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or min(numbers) < 0 or numbers[0] <= 0 or numbers[-1] <= 0:
        raise PotluckError(
            f"Split {text!r} is not understood; write train:test or train:val:test, such as 8:1:1."
        )
    total = add_up(numbers)
    if total > MAX_SHARE_SUM and abs(total - 100) > 0.5:
        raise PotluckError(
            f"Split {text!r} adds up to {total:g}; write percents that add up to 100, such as 75:25, or small shares, "
            "such as 8:1:1."
        )
    return tuple(number / total for number in numbers)
