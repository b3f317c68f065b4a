"""A partition carried out: who got which rows, as an object that is pleasant in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from potluck.core.random import derive_seed
from potluck.data.dataset import Data
from potluck.data.partitions.names import parse_partition
from potluck.data.partitions.rules import Partition, Rows, apportion, split_by_counts
from potluck.data.show import counts as count


@dataclass(frozen=True, eq=False, repr=False)
class Partitioning:
    """The rows of every client (`parts`) and their number per client and class (`counts`)."""

    rule: Partition
    parts: list[Rows]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.parts)

    def __getitem__(self, client: int) -> Rows:
        """Return the rows of one client."""
        return self.parts[client]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of rows of each client."""
        sizes: NDArray[np.int64] = self.counts.sum(axis=1)
        return sizes

    def __repr__(self) -> str:
        present = (self.counts > 0).sum(axis=1)
        return (
            f"Partitioning({str(self.rule)!r}: {len(self)} clients, {self.sizes.sum():,} rows, "
            f"{self.sizes.min():,} to {self.sizes.max():,} per client, "
            f"{present.min()} to {present.max()} classes per client)"
        )


def partition(
    data: Data | ArrayLike, rule: str | Partition, clients: int, seed: int = 0, rows: ArrayLike | None = None
) -> Partitioning:
    """Deal the training rows of `data` (or plain labels) to `clients` by a rule such as `"dirichlet:0.1"`.

    With `rows`, only those are dealt; the others (held out as public data, say) stay unused.
    """
    labels = data.y.numpy() if isinstance(data, Data) else np.asarray(data)
    groups = data.groups.numpy() if isinstance(data, Data) and data.groups is not None else None
    num_classes = data.num_classes if isinstance(data, Data) else int(labels.max()) + 1
    chosen = parse_partition(rule)
    if rows is None:
        parts = chosen.assign(labels, clients, seed, groups)
    else:
        dealt = np.sort(np.asarray(rows, dtype=np.int64))
        row_groups = None if groups is None else groups[dealt]
        parts = [dealt[part] for part in chosen.assign(labels[dealt], clients, seed, row_groups)]
    return Partitioning(chosen, parts, count(labels, parts, num_classes))


def match_shares(
    parts: Sequence[Rows], labels: ArrayLike, test_labels: ArrayLike, seed: int = 0
) -> list[Rows]:
    """Deal a test part so that each client has the same share of each class as of the training part.

    A client that rounding would leave without a test row takes one, of a class it trains on, from the client
    that has most of them; test rows of classes that no client trains on stay unused.
    """
    train_labels, tested = np.asarray(labels), np.asarray(test_labels)
    num_classes = int(max(train_labels.max(), tested.max(initial=0))) + 1
    trained = count(train_labels, parts, num_classes)
    dealt = np.zeros_like(trained)
    for label in np.flatnonzero(trained.any(axis=0)):
        dealt[:, label] = apportion(trained[:, label].astype(np.float64), int((tested == label).sum()))
    test_sizes = dealt.sum(axis=1)
    for needy in np.flatnonzero(test_sizes == 0):
        givers = np.flatnonzero(test_sizes > 1)
        if not len(givers):
            break
        spare = np.where(trained[needy] > 0, dealt[givers], 0)
        place, wanted_label = np.unravel_index(np.argmax(spare), spare.shape)
        if spare[place, wanted_label] > 0:
            for client, change in ((givers[place], -1), (needy, 1)):
                dealt[client, wanted_label] += change
                test_sizes[client] += change
    rng = np.random.default_rng(derive_seed("match_shares", seed))
    classes = np.flatnonzero(dealt.any(axis=0))
    rows = [rng.permutation(np.flatnonzero(tested == label)) for label in classes]
    if not rows:
        return [np.empty(0, dtype=np.int64) for _ in parts]
    return [np.sort(part) for part in split_by_counts(rows, dealt[:, classes])]
