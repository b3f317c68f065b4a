"""Partition rules: rows used at most once, all where promised, the same for one seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.core.errors import PotluckError
from potluck.data import (
    as_data,
    contiguous,
    counts,
    dirichlet,
    iid,
    match_shares,
    natural,
    parse_partition,
    partition,
    pathological,
)

LABELS = np.random.default_rng(0).integers(0, 10, 3000)
RULES = [
    "iid",
    "contiguous",
    "dirichlet:0.1",
    "dirichlet:0.5,min_size=40,capped=false",
    "pathological:2",
    "pathological:3,rule=pfllib",
    "skew:rotate=45,base=dirichlet:0.5,min_size=20",
]


@pytest.mark.parametrize("text", RULES)
@given(seed=st.integers(0, 2**31), clients=st.integers(1, 20))
@settings(max_examples=15, deadline=None)
def test_rows_go_to_one_client_at_most_and_depend_on_the_seed_alone(text, seed, clients):
    rule = parse_partition(text)
    parts = rule.assign(LABELS, clients, seed)
    rows = np.concatenate(parts)
    assert len(parts) == clients
    assert len(np.unique(rows)) == len(rows)
    assert all(len(part) and np.all(np.diff(part) > 0) for part in parts)
    for actual, expected in zip(parts, rule.assign(LABELS, clients, seed), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("text", RULES)
@given(clients=st.sampled_from([5, 10, 20]), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_every_row_is_dealt_when_the_classes_divide_evenly(text, clients, seed):
    if "pfllib" in text:
        text = "pathological:2,rule=pfllib"
    parts = parse_partition(text).assign(LABELS, clients, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))


@pytest.mark.parametrize("text", [rule for rule in RULES if rule != "contiguous"])
def test_another_seed_deals_otherwise(text):
    rule = parse_partition(text)
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(rule.assign(LABELS, 5, 1), rule.assign(LABELS, 5, 2), strict=True)
    )


@pytest.mark.parametrize("text", [*RULES, "natural", "file:a/b.json"])
def test_a_rule_reads_its_own_text_back(text):
    assert str(parse_partition(text)) == text
    assert parse_partition(str(parse_partition(text))) == parse_partition(text)


def test_iid_sizes_differ_by_one_row_at_most():
    assert sorted(map(len, iid().assign(np.zeros(11, int), 3))) == [3, 4, 4]


def test_contiguous_keeps_file_order():
    parts = contiguous().assign(np.zeros(7, int), 3)
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4], [5, 6]]


@given(classes=st.integers(1, 10), clients=st.integers(1, 25), seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_yi_gives_every_client_exactly_its_number_of_different_classes(classes, clients, seed):
    table = counts(LABELS, pathological(classes).assign(LABELS, clients, seed), 10)
    assert ((table > 0).sum(axis=1) == classes).all()
    owners = (table > 0).sum(axis=0)
    assert owners.max() - owners.min() <= 1  # the slots of the classes differ by one at most


def test_yi_shares_of_a_class_lie_between_two_and_three_fifths():
    labels = np.repeat(np.arange(10), 1000)
    table = counts(labels, pathological(2).assign(labels, 10, 0), 10)
    shares = table[table > 0] / 1000  # two owners per class: u / (u + v) with both in [0.4, 0.6]
    assert shares.min() >= 0.4 - 0.001
    assert shares.max() <= 0.6 + 0.001
    assert shares.std() > 0.01


def test_pfllib_deals_classes_in_order_and_all_but_the_last_at_most_the_even_share():
    labels = np.repeat(np.arange(10), 400)
    table = counts(labels, pathological(2, rule="pfllib").assign(labels, 20, 3), 10)
    # ceil(20 / 10 * 2) = 4 takers per class: clients 0-3 have classes 0 and 1, clients 4-7 classes 2 and 3, …
    for label in range(10):
        takers = np.flatnonzero(table[:, label])
        first = label // 2 * 4
        assert takers.tolist() == [first, first + 1, first + 2, first + 3]
        assert (table[takers[:-1], label] >= 10).all()  # a tenth of the even share of 100
        assert (table[takers[:-1], label] < 100).all()
        assert table[takers[-1], label] > 100


def test_pfllib_floor_is_min_size_over_the_number_of_classes():
    labels = np.repeat(np.arange(2), 100)
    table = counts(labels, pathological(1, rule="pfllib", min_size=60).assign(labels, 4, 0), 2)
    assert table[0, 0] >= 30  # max(50 / 10, 60 / 2)
    assert table[0, 0] < 50


def test_capped_dirichlet_gives_a_full_client_nothing_more():
    labels = np.repeat(np.arange(10), 300)
    table = counts(labels, dirichlet(0.1).assign(labels, 10, 1), 10)
    before = np.cumsum(table, axis=1) - table
    assert (table[before >= 300] == 0).all()
    assert (before >= 300).any()


def test_uncapped_dirichlet_has_larger_clients_than_capped():
    sizes = {capped: [] for capped in (True, False)}
    for seed in range(10):
        for capped, uncapped in sizes.items():
            uncapped.append(max(map(len, dirichlet(0.1, 1, capped).assign(LABELS, 10, seed))))
    assert np.mean(sizes[False]) > np.mean(sizes[True])


def test_small_alpha_is_more_uneven_than_large_alpha():
    few = (partition(LABELS, dirichlet(0.05), 10).counts > 0).sum()
    many = (partition(LABELS, dirichlet(100), 10).counts > 0).sum()
    assert few < many == 100


@pytest.mark.parametrize("min_size", [10, 40])
def test_dirichlet_keeps_its_minimum_size(min_size):
    for seed in range(5):
        assert min(map(len, dirichlet(0.1, min_size).assign(LABELS, 20, seed))) >= min_size


def test_natural_takes_the_first_persons():
    groups = np.array([7, 3, 3, 9, 7])
    parts = natural().assign(np.zeros(5, int), 2, groups=groups)
    assert [part.tolist() for part in parts] == [[1, 2], [0, 4]]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: iid().assign(np.zeros(3, int), 4),
            "clients is 4 but the data have only 3 rows; use 3 clients",
        ),
        (lambda: iid().assign(np.zeros(3, int), 0), "clients is 0; there must be at least 1"),
        (
            lambda: pathological(11).assign(LABELS, 5),
            "11 classes per client but the data have 10; ask for 10",
        ),
        (lambda: pathological(0), "classes is 0; every client needs at least 1"),
        (lambda: dirichlet(0), "alpha is 0; it must be greater than 0"),
        (lambda: dirichlet(float("nan")), "alpha is nan; it must be greater than 0"),
        (lambda: dirichlet(1, min_size=0), "min_size is 0; it must be at least 1"),
        (
            lambda: dirichlet(0.1).assign(LABELS, 301),
            "use fewer clients, a larger alpha or a smaller min_size",
        ),
        (
            lambda: dirichlet(0.001, capped=False).assign(LABELS, 20),
            "found no draw in which each of 20 clients",
        ),
        (lambda: natural().assign(LABELS, 5), "'natural' needs data that say who produced each row"),
        (
            lambda: natural().assign(np.zeros(4, int), 3, groups=np.array([1, 1, 2, 2])),
            "finds 2 persons in the data but clients is 3; use 2 clients or fewer",
        ),
        (lambda: pathological(1).assign(np.array([0, 0, 0, 1]), 4), "leaves client"),
        (
            lambda: parse_partition("dirichlett:0.1"),
            "Unknown partition 'dirichlett:0.1'. Did you mean 'dirichlet'?",
        ),
        (lambda: parse_partition("dirichlet"), "'dirichlet' is not understood; write dirichlet:0.1"),
        (lambda: parse_partition("dirichlet:a"), "'dirichlet:a' is not understood; write dirichlet:0.1"),
        (lambda: parse_partition("pathological:2.5"), "is not understood; write pathological:2"),
        (lambda: parse_partition("pathological:2,rule=shamsian"), "Unknown pathological rule 'shamsian'"),
        (lambda: parse_partition("pathological:2,rool=yi"), "'rool'. Did you mean 'rule'?"),
        (lambda: parse_partition("iid:3"), "takes no value; write 'iid'"),
        (lambda: parse_partition("file"), "needs a path; write file:PATH"),
    ],
)
def test_invalid_partitions_are_one_sentence(make, says):
    with pytest.raises(PotluckError) as problem:
        make()
    assert says in str(problem.value)


def test_an_empty_client_is_named_with_its_remedy():
    with pytest.raises(
        PotluckError, match=r"leaves client \d without rows; use fewer clients or more classes"
    ):
        pathological(1).assign(np.array([0] * 9 + [1]), 10)


def test_partition_of_data_shows_itself():
    data = as_data((np.zeros((6, 2), np.float32), [0, 0, 1, 1, 2, 2]))
    parted = partition(data, "contiguous", 3)
    assert parted.counts.tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 2]]
    assert parted.sizes.tolist() == [2, 2, 2]
    assert parted[1].tolist() == [2, 3]
    assert repr(parted) == (
        "Partitioning('contiguous': 3 clients, 6 rows, 2 to 2 per client, 1 to 1 classes per client)"
    )


def test_a_test_part_is_dealt_with_the_training_shares():
    labels = np.array([0] * 8 + [1] * 4)
    parts = [np.arange(6), np.array([6, 7, 8, 9, 10, 11])]  # client 0: 6 of class 0; client 1: 2 and 4
    tested = np.array([0] * 4 + [1] * 3 + [2] * 5)
    dealt = match_shares(parts, labels, tested)
    assert counts(tested, dealt, 3).tolist() == [[3, 0, 0], [1, 3, 0]]  # nobody trains on class 2
    assert len(np.unique(np.concatenate(dealt))) == 7


@given(seed=st.integers(0, 999), clients=st.integers(2, 12), alpha=st.sampled_from([0.1, 1.0]))
@settings(max_examples=25, deadline=None)
def test_a_matched_test_part_is_disjoint_and_of_known_classes_only(seed, clients, alpha):
    parts = dirichlet(alpha).assign(LABELS, clients, seed)
    tested = np.random.default_rng(seed).integers(0, 10, 400)
    dealt = match_shares(parts, LABELS, tested, seed)
    rows = np.concatenate(dealt)
    assert len(np.unique(rows)) == len(rows) == 400  # every class has an owner, so every test row is dealt
    trained, test_counts = counts(LABELS, parts, 10), counts(tested, dealt, 10)
    assert (test_counts[trained == 0] == 0).all()
    assert (test_counts.sum(axis=1) > 0).all()
    exact = trained / trained.sum(axis=0) * test_counts.sum(axis=0)
    assert (
        np.abs(test_counts - exact).max() < 2 + clients
    )  # rounding, and rows given to clients left without any


def test_tiny_shares_do_not_break_the_draw():
    parts = dirichlet(1e-300, 1).assign(LABELS, 5, 0)
    assert sum(map(len, parts)) == len(LABELS)


def test_rounding_leaves_no_client_without_a_test_row():
    labels = np.zeros(100, int)
    parts = [np.array([0]), np.arange(1, 100)]
    dealt = match_shares(parts, labels, np.zeros(10, int))
    assert [len(part) for part in dealt] == [1, 9]
