"""Allocate the rows of a data set to clients: shared test rows, public rows, then each client's own three parts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from potluck.core.method import Method
from potluck.core.needs import Need
from potluck.core.random import derive_seed
from potluck.core.samples import Samples
from potluck.core.task import CPU
from potluck.data import Data, Partition, match_shares, parse_partition, split_in_three
from potluck.data.partitions.rules import Natural
from potluck.data.public import hold_out, public_samples
from potluck.experiment import Experiment
from potluck.federation.federation import LazySequence

Rows = NDArray[np.int64]
Share = tuple[Samples, Samples, Samples]
"""A client's training, validation and test samples."""


@dataclass(frozen=True)
class ClientRows:
    """The rows of every client in one array, client after client, and where those of each end."""

    rows: Rows
    ends: Rows

    @classmethod
    def of(cls, parts: Sequence[Rows]) -> ClientRows:
        """Return the same as a list with an array for each client."""
        return cls(np.concatenate(parts), np.cumsum([len(part) for part in parts], dtype=np.int64))

    def __getitem__(self, client: int) -> Rows:
        return self.rows[self.ends[client - 1] if client else 0 : self.ends[client]]

    def sizes(self) -> list[int]:
        """Return how many rows each client has."""
        sizes: list[int] = np.diff(self.ends, prepend=0).tolist()
        return sizes


@dataclass(frozen=True)
class Allocation:
    """Training, validation and test samples of each client, and what all may see.

    `sizes` are the numbers of training and validation samples; `partition_arrays` hold the rows of each
    client where shares are made on demand.
    """

    shares: Sequence[Share]
    sizes: Sequence[tuple[int, int]]
    shared_test: Samples | None
    public: Samples | None
    partition_arrays: Sequence[Tensor] = ()
    names: Sequence[str] = ()
    """The clients' names, where the data name them."""


def allocate(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    data: Data,
    device: torch.device = CPU,
    partition: Partition | None = None,
) -> Allocation:
    """Hold out what is shared or public, then deal the rest to clients and split each client's part.

    With `pool = "train"` the publisher's test part stays apart: it is the shared test set, each client's own
    test rows are its fair share of it, and of `data.split` only the validation part acts. Otherwise all rows are
    dealt and each client's part is split. Rows are brought to `device` once, for all clients. A client's part is split
    when it is asked for, unless the rule has its own way of seeing.
    """
    settings, seed = experiment.data, experiment.seed
    wants_shared = bool({"shared", "global"} & {experiment.evaluate.protocol, *experiment.evaluate.also})
    keep_apart = settings.pool == "train" or (settings.pool == "auto" and wants_shared)
    data = (data if keep_apart else data.merged()).to_device(device)
    shared_test = data.test
    rows: Rows = np.arange(len(data))
    if wants_shared and shared_test is None:
        test_rows, rows = hold_out(len(data), settings.shared_test, derive_seed("shared test", seed))
        shared_test = data.view(test_rows)
    public, rows = _public(experiment, method, data, rows)
    rule = partition or parse_partition(experiment.partition.rule)
    groups = None if data.groups is None else data.groups.numpy()[rows]
    labels = data.y.numpy()[rows]
    parts = rule.assign(labels, experiment.partition.clients, seed, groups)
    tested = None if data.test is None else match_shares(parts, labels, data.test.labels.numpy(), seed)
    own = ClientRows.of(parts)
    own = ClientRows(rows[own.rows], own.ends)
    names = client_names(data, rule, groups, len(parts))
    return _cut(experiment, data, rule, own, tested, Allocation((), (), shared_test, public, names=names))


def client_names(data: Data, rule: Partition, groups: Rows | None, clients: int) -> Sequence[str]:
    """Name the clients: by their group where each is one of the data's named groups, else by their number."""
    if groups is not None and data.group_names and isinstance(rule, Natural):
        return [data.group_names[group] for group in np.unique(groups)[:clients].tolist()]
    return LazySequence(clients, lambda client: f"client-{client}")


def _cut(
    experiment: Experiment,
    data: Data,
    rule: Partition,
    own: ClientRows,
    tested: Sequence[Rows] | None,
    common: Allocation,
) -> Allocation:
    """Return every client's part in three, when it is asked for; at once where the rule has its own way of seeing."""
    settings, tests = experiment.data, None if tested is None else ClientRows.of(tested)
    split = functools.partial(
        split_in_three, split=settings.split, seed=experiment.seed, test_apart=tests is not None
    )

    def share(client: int) -> Share:
        train, validation, test = (
            data.view(rows) for rows in split(own[client], client=common.names[client])
        )
        return train, validation, test if tests is None else data.test_view(tests[client])

    @functools.cache
    def sizes(rows: int) -> tuple[int, int]:  # how many rows are for what depends on how many there are alone
        train, validation, _ = split(np.arange(rows), client="any")
        return len(train), len(validation)

    clients = len(own.ends)
    if type(rule).transform_samples is Partition.transform_samples:
        arrays = [own.rows, own.ends, *([] if tests is None else [tests.rows, tests.ends])]
        return replace(
            common,
            shares=LazySequence(clients, share),
            sizes=[sizes(rows) for rows in own.sizes()],
            partition_arrays=[torch.from_numpy(array) for array in arrays],
        )
    views = zip(*map(share, range(clients)), strict=True)
    transform_samples = (
        rule.transform_samples(list(view), experiment.seed, data.input_shape) for view in views
    )
    shares = [(train, validation, test) for train, validation, test in zip(*transform_samples, strict=True)]
    return replace(
        common, shares=shares, sizes=[(len(client_share[0]), len(client_share[1])) for client_share in shares]
    )


def _public(
    experiment: Experiment, method: Method[Any, Any, Any], data: Data, rows: Rows
) -> tuple[Samples | None, Rows]:
    choice = experiment.data.public
    if choice == "auto":
        choice = 0.1 if Need.PUBLIC_DATA in method.requires() else 0.0
    if not choice:
        return None, rows
    if isinstance(choice, str):
        return public_samples(data, choice, experiment.seed, experiment.data.root)[0], rows
    public_rows, private_rows = hold_out(len(rows), choice, experiment.seed)
    return data.view(rows[public_rows]), rows[private_rows]
