"""Public data: disjoint from all private rows, or another set of the same shape."""

import numpy as np
import pytest
import torch

from potluck.core.errors import PotluckError
from potluck.data import as_data, load_data, partition, public_samples


def test_a_fraction_belongs_to_no_client():
    data = load_data("digits")
    public, private = public_samples(data, 0.1, seed=3)
    assert len(public) == 180
    clients = partition(data, "dirichlet:0.5", 5, rows=private)
    rows = np.concatenate([*clients.parts, public.index.numpy()])
    np.testing.assert_array_equal(np.sort(rows), np.arange(1797))
    again, _ = public_samples(data, "0.1", seed=3)
    assert torch.equal(public.index, again.index)
    other_rows, _ = public_samples(data, 0.1, seed=4)
    assert not torch.equal(public.index, other_rows.index)


def test_held_out_rows_keep_natural_groups_right():
    data = as_data((np.arange(8.0)[:, None], [0, 1] * 4), groups=[1, 1, 1, 1, 2, 2, 2, 2])
    parts = partition(data, "natural", 2, rows=[0, 2, 5, 6]).parts
    assert [part.tolist() for part in parts] == [[0, 2], [5, 6]]


def test_another_data_set_of_the_same_shape():
    data = load_data("digits").to_dtype(torch.float64)
    public_data = as_data((np.zeros((5, 1, 8, 8), np.uint8), [0, 1, 2, 3, 4]))
    public, private = public_samples(data, public_data)
    assert len(public) == 5
    assert len(private) == 1797
    assert public.take(slice(0, 2))[0].dtype == torch.float64


def test_another_data_set_by_name(tmp_path):
    np.savez(tmp_path / "p.npz", x=np.zeros((4, 8, 8), np.uint8), y=[0, 1, 1, 0])
    public, _ = public_samples(load_data("digits"), f"npz:{tmp_path / 'p.npz'}", root=tmp_path)
    assert len(public) == 4


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (0.0, "public fraction is 0; it must lie between 0 and 1"),
        (1.0, "public fraction is 1; it must lie between 0 and 1"),
        (
            as_data((np.zeros((5, 1, 4, 4), np.uint8), [0] * 5), name="small"),
            r"'small' have inputs of shape \(1, 4, 4\) but 'digits' has \(1, 8, 8\)",
        ),
        ("digitz", "Unknown data set 'digitz'"),
    ],
)
def test_public_data_that_do_not_fit(choice, says):
    with pytest.raises(PotluckError, match=says):
        public_samples(load_data("digits"), choice)


def test_texts_with_other_word_numbers_are_refused():
    texts = as_data((np.ones((2, 3), np.int64), [0, 1]), vocabulary=5)
    public = as_data((np.ones((2, 3), np.int64), [0, 1]), vocabulary=5, name="other")
    with pytest.raises(PotluckError, match="number their words unlike"):
        public_samples(texts, public)
