"""Partitioning for very many clients at once equals partitioning client by client."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.core.random import derive_seed
from potluck.data import match_shares, parse_partition
from potluck.data.partitions.rules import Rows, apportion, pieces, split_by_counts, split_evenly
from potluck.data.show import counts


def lists(parts: list[Rows]) -> list[list[int]]:
    return [part.tolist() for part in parts]


@given(st.integers(0, 60), st.integers(1, 20))
def test_even_pieces_are_numpys(rows: int, clients: int):
    assert lists(split_evenly(np.arange(rows), clients)) == lists(np.array_split(np.arange(rows), clients))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(0, 9))
def test_pieces_are_numpys_and_leave_the_rest(sizes: list[int], rest: int):
    rows = np.arange(sum(sizes) + rest)
    assert lists(pieces(rows, sizes)) == lists(np.split(rows, np.cumsum(sizes))[:-1])


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 2**16))
def test_each_class_is_handed_out_in_turn(clients: int, classes: int, seed: int):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 4, (clients, classes))
    rows = [rng.permutation(np.arange(100 * n, 100 * n + table[:, n].sum() + 2)) for n in range(classes)]
    expected: list[list[int]] = [[] for _ in range(clients)]
    for column in range(classes):
        rows_left = rows[column].tolist()
        for client in range(clients):
            expected[client] += [rows_left.pop(0) for _ in range(table[client, column])]
    assert lists(split_by_counts(rows, table)) == expected


def test_a_persons_rows_are_those_that_bear_its_name():
    groups = np.array([7, 3, 7, 9, 3, 3, 9, 1])
    parts = parse_partition("natural").assign(np.zeros(8, dtype=int), 3, 0, groups)
    assert lists(parts) == [[7], [1, 4, 5], [0, 2]]


def test_counts_are_taken_client_by_client_and_class_by_class():
    labels = np.array([0, 2, 2, 1, 0, 2])
    parts = [np.array([0, 1, 2]), np.array([], dtype=np.int64), np.array([3, 5])]
    assert counts(labels, parts, 4).tolist() == [[1, 0, 2, 0], [0, 0, 0, 0], [0, 1, 1, 0]]


def one_by_one(parts: list[Rows], labels: Rows, tested: Rows, seed: int) -> list[list[int]]:
    """Test rows as they read: a fair share of each class, then who has none takes one from who has most of its classes."""
    classes = int(max(labels.max(), tested.max(initial=0))) + 1
    trained = np.array([[int((labels[part] == label).sum()) for label in range(classes)] for part in parts])
    dealt = np.zeros_like(trained)
    for label in range(classes):
        if trained[:, label].any():
            share = trained[:, label].astype(np.float64)
            dealt[:, label] = apportion(share, int((tested == label).sum()))
    for needy in np.flatnonzero(dealt.sum(axis=1) == 0):
        best, giver, owner = 0, -1, -1
        for client, row in enumerate(dealt):
            for label in range(classes):
                if row.sum() > 1 and trained[needy, label] and row[label] > best:
                    best, giver, owner = int(row[label]), client, label
        if best:
            dealt[giver, owner] -= 1
            dealt[needy, owner] += 1
    rng = np.random.default_rng(derive_seed("match_shares", seed))
    assigned: list[list[int]] = [[] for _ in parts]
    for label in np.flatnonzero(dealt.any(axis=0)):
        rows_left = rng.permutation(np.flatnonzero(tested == label)).tolist()
        for client, count in enumerate(dealt[:, label]):
            assigned[client] += [rows_left.pop(0) for _ in range(count)]
    return [sorted(client_rows) for client_rows in assigned]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 14), st.integers(0, 40), st.integers(2, 5), st.integers(0, 2**16))
def test_test_rows_are_those_of_going_from_client_to_client(
    clients: int, tests: int, classes: int, seed: int
):
    rng = np.random.default_rng(seed)
    labels, tested = rng.integers(0, classes, 60), rng.integers(0, classes + 1, tests)
    parts = parse_partition("contiguous").assign(labels, clients, 0)
    assert lists(match_shares(parts, labels, tested, seed)) == one_by_one(parts, labels, tested, seed)
