"""A client's split is disjoint, complete and independent of construction order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.core.errors import PotluckError
from potluck.data import parse_split, split_client, split_in_three

PARTS = st.sampled_from([(0.8, 0.1, 0.1), (0.8, 0.2), (0.75, 0.25), (1.0,), (0.01, 0.98, 0.01)])


@given(n=st.integers(1, 200), parts=PARTS, seed=st.integers(0, 99), client=st.text(max_size=3))
def test_parts_are_disjoint_complete_and_never_without_training_or_test_row(n, parts, seed, client):
    index = np.arange(5, 5 + 2 * n, 2)
    split = split_client(index, parts, seed=seed, client=client)
    assert len(split) == len(parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(split)), index)
    assert len(split[0]) >= 1
    assert len(parts) == 1 or n == 1 or len(split[-1]) >= 1


@pytest.mark.parametrize(
    ("n", "parts", "sizes"),
    [
        (100, (0.75, 0.25), [75, 25]),
        (100, (0.8, 0.1, 0.1), [80, 10, 10]),
        (7, (0.8, 0.2), [6, 1]),
        (2, (0.8, 0.1, 0.1), [1, 0, 1]),
        (3, (0.8, 0.1, 0.1), [2, 0, 1]),
        (1, (0.75, 0.25), [1, 0]),
        (9, (1.0,), [9]),
    ],
)
def test_sizes(n, parts, sizes):
    assert [len(part) for part in split_client(np.arange(n), parts, seed=0, client="a")] == sizes


def test_a_split_depends_on_seed_and_name_not_on_the_order_of_rows():
    index = np.arange(40)
    first = split_client(index, seed=1, client="3")
    np.testing.assert_array_equal(first[0], split_client(index[::-1], seed=1, client="3")[0])
    assert not np.array_equal(first[0], split_client(index, seed=1, client="4")[0])
    assert not np.array_equal(first[0], split_client(index, seed=2, client="3")[0])


def test_splits_are_read_from_text():
    assert parse_split("8:1:1") == pytest.approx((0.8, 0.1, 0.1))
    assert parse_split("8:2") == pytest.approx((0.8, 0.2))
    assert parse_split("75:25") == pytest.approx((0.75, 0.25))
    assert parse_split("shared") == (1.0,)


@pytest.mark.parametrize("text", ["8", "8:0", "0:1", "a:b", "8:-1:2", "1:2:3:4", ""])
def test_a_split_that_cannot_be_read_is_named(text):
    with pytest.raises(PotluckError, match=f"Split '{text}' is not understood; write train:test"):
        parse_split(text)


def test_nothing_to_split_is_an_error():
    with pytest.raises(PotluckError, match="Client 'x' has no rows to split"):
        split_client(np.empty(0, np.int64), seed=0, client="x")


@pytest.mark.parametrize(
    ("split", "sizes"),
    [("8:1:1", [80, 10, 10]), ("8:2", [80, 0, 20]), ("8:0:2", [80, 0, 20]), ("shared", [100, 0, 0])],
)
def test_three_parts_of_which_some_may_be_empty(split, sizes):
    parts = split_in_three(np.arange(100), split, seed=0, client="a")
    assert [len(part) for part in parts] == sizes
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(100))


@pytest.mark.parametrize(
    ("split", "sizes"), [("8:1:1", [80, 10, 0]), ("75:25", [90, 0, 0]), ("shared", [90, 0, 0])]
)
def test_where_test_rows_come_from_elsewhere_only_validation_is_cut_off(split, sizes):
    parts = split_in_three(np.arange(90), split, seed=0, client="a", test_apart=True)
    assert [len(part) for part in parts] == sizes
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(90))
