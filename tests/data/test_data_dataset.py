"""`Data`: raw rows, model input in any float type, pooling and limiting."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, IterableDataset

from potluck.core.errors import PotluckError
from potluck.data import Data, as_data, load_data
from potluck.data.dataset import MeanImage, Normalise, statistics


def small(n_train=8, n_test=4):
    both = torch.arange((n_train + n_test) * 3, dtype=torch.uint8).reshape(-1, 1, 1, 3)
    y = torch.arange(n_train + n_test) % 2
    return Data("small", both[:n_train], y[:n_train], 2, (1, 1, 3), test_x=both[n_train:], test_y=y[n_train:])


def test_digits_are_those_of_scikit_learn_without_loading_it():
    check = (
        "import sys; from potluck.data import load_data; load_data('digits'); print('sklearn' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120)
    assert process.stdout.strip() == "False", process.stderr
    bunch, data = load_digits(), load_data("digits")
    assert np.array_equal(data.x.squeeze(1).numpy(), bunch.images)
    assert np.array_equal(data.y.numpy(), bunch.target)


def test_digits_are_grey_images_in_zero_one():
    data = load_data("digits")
    x, y = data.train.take(slice(0, 5))
    assert repr(data) == "Data('digits': 1,797 rows, 10 classes, input 1×8×8, stored as uint8)"
    assert x.shape == (5, 1, 8, 8)
    assert x.dtype == torch.float32
    assert y.tolist() == [0, 1, 2, 3, 4]
    everything, _ = data.train.take(slice(None))
    assert everything.min() == 0
    assert everything.max() == 1
    assert data.test is None


def test_model_input_comes_in_the_float_type_asked_for():
    data = load_data("digits").to_dtype(torch.float64)
    assert data.train.take(slice(0, 2))[0].dtype == torch.float64
    assert data.x.dtype == torch.uint8
    floats = as_data((np.zeros((2, 3)), [0, 1]))
    assert floats.train.take(slice(None))[0].dtype == torch.float32
    assert floats.to_dtype(torch.float64).train.take(slice(None))[0].dtype == torch.float64
    words = as_data((np.ones((2, 3), np.int64), [0, 1]), vocabulary=5)
    assert words.to_dtype(torch.float64).train.take(slice(None))[0].dtype == torch.int64


def test_user_transforms_are_cast_after_they_ran():
    data = Data("own", torch.ones(2, 1), torch.tensor([0, 1]), 2, (1,), transform=lambda x: x + 1)
    x, _ = data.to_dtype(torch.float64).train.take(slice(None))
    assert x.dtype == torch.float64
    assert x.tolist() == [[2.0], [2.0]]


def test_normalise_is_the_formula():
    x = torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8)  # two channels of 1×2
    out = Normalise((0.5, 0.2), (0.25, 0.1), dtype=torch.float64)(x)
    expected = torch.tensor([[[[-2.0, 2.0]], [[0.0, 2.0]]]], dtype=torch.float64)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(Normalise((0.5, 0.2), (0.25, 0.1))(x), expected.float())


def test_mean_image_is_subtracted_after_scaling():
    out = MeanImage(torch.tensor([[0.5, 0.25]]))(torch.tensor([[[255, 0]]], dtype=torch.uint8))
    assert out.tolist() == [[[0.5, -0.25]]]
    assert MeanImage(torch.zeros(1)).to_dtype(torch.float64)(torch.ones(1, 1)).dtype == torch.float64


def test_statistics_are_per_channel_and_never_zero():
    x = torch.tensor([[[1.0, 3.0], [5.0, 5.0]]])
    assert statistics(x) == ((2.0, 5.0), (1.0, 1.0))


def test_papers_differ_in_normalisation():
    x = torch.tensor([[[[0, 255]]], [[[51, 255]]]], dtype=torch.uint8)
    data = Data("n", x, torch.tensor([0, 1]), 2, (1, 1, 2), transform=Normalise((0.3,), (0.2,)))
    row = {how: data.normalised(how).train.take(slice(0, 1))[0].flatten() for how in ("unit", "half", "none")}
    assert row["unit"].tolist() == [0, 1]
    assert row["half"].tolist() == [-1, 1]
    assert row["none"].tolist() == [0, 255]
    centred = data.to_dtype(torch.float64).normalised("mean-image").train.take(slice(0, 1))[0]
    assert centred.dtype == torch.float64
    torch.testing.assert_close(
        centred.flatten(), torch.tensor([-0.1, 0.0], dtype=torch.float64), atol=1e-7, rtol=0
    )
    assert (
        load_data("digits").normalised("half").train.take(slice(None))[0].max() == 1
    )  # sixteen levels of grey
    with pytest.raises(PotluckError, match="Unknown normalisation 'hlf'"):
        data.normalised("hlf")


def test_merging_pools_both_parts_without_a_copy_when_they_are_neighbours():
    data = small()
    pooled = data.merged()
    assert len(pooled) == 12
    assert pooled.test is None
    assert pooled.x.data_ptr() == data.x.data_ptr()
    assert pooled.y.tolist() == [0, 1] * 6
    apart = Data(
        "apart", data.x.clone(), data.y, 2, (1, 1, 3), test_x=data.test_x.clone(), test_y=data.test_y
    )
    assert torch.equal(apart.merged().x, pooled.x)
    assert load_data("digits").merged().x.shape == (1797, 1, 8, 8)


def test_groups_of_both_parts_are_pooled_too():
    data = small()
    grouped = Data(
        "g",
        data.x,
        data.y,
        2,
        (1, 1, 3),
        test_x=data.test_x,
        test_y=data.test_y,
        groups=torch.zeros(8),
        test_groups=torch.ones(4),
    ).merged()
    assert grouped.groups.tolist() == [0] * 8 + [1] * 4
    assert grouped.test_groups is None


def test_a_limit_is_class_balanced_and_shrinks_both_parts():
    data = small(80, 40).limit(30, seed=1)
    assert (len(data), len(data.test_y)) == (20, 10)
    assert torch.bincount(data.y).tolist() == [10, 10]
    assert torch.bincount(data.test_y).tolist() == [5, 5]
    assert torch.equal(data.x, small(80, 40).limit(30, seed=1).x)
    assert not torch.equal(data.x, small(80, 40).limit(30, seed=2).x)
    assert small().limit(1000).x.shape[0] == 8


def test_a_small_class_is_taken_whole_by_a_limit():
    y = [0] * 90 + [1] * 5 + [2] * 5
    data = as_data((np.arange(100, dtype=np.float32)[:, None], y)).limit(30)
    assert torch.bincount(data.y).tolist() == [20, 5, 5]


def test_groups_follow_a_limit():
    data = as_data((np.arange(10)[:, None], [0, 1] * 5), groups=np.arange(10) + 100).limit(4)
    assert torch.equal(data.groups, data.x[:, 0] + 100)


def test_a_view_copies_nothing_and_test_rows_need_a_test_part():
    data = small()
    view = data.view(np.array([3, 1]))
    assert view.x.data_ptr() == data.x.data_ptr()
    assert view.labels.tolist() == [1, 1]
    assert data.test_view(np.array([0, 2])).labels.tolist() == [0, 0]
    with pytest.raises(PotluckError, match="'digits' has no test part of its own"):
        load_data("digits").test_view(np.array([0]))


class Squares(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, row):
        return torch.full((1, 2, 2), float(row)), row % 3


def test_a_torch_dataset_is_read_once():
    data = as_data(Squares(), name="squares")
    assert repr(data) == "Data('squares': 6 rows, 3 classes, input 1×2×2, stored as float32)"
    assert data.x[4, 0, 1, 1] == 4
    assert as_data(data) is data


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        ("text", {}, "is a str; give a pair"),
        ((np.zeros((2, 1)), [0]), {}, "give [n, …] rows and n labels"),
        ((np.zeros(2), [0, 1]), {}, "give [n, …] rows and n labels"),
        ((np.zeros((2, 1)), [0.5, 1]), {}, "must be whole numbers from 0"),
        ((np.zeros((2, 1)), [-1, 1]), {}, "must be whole numbers from 0"),
        ((np.zeros((2, 1)), [0, 5]), {"num_classes": 2}, "has label 5 but num_classes is 2"),
        ((np.zeros((2, 1)), [0, 1]), {"groups": [1]}, "2 rows but 1 groups"),
        ((np.zeros((2, 1)), [0, 1]), {"test": (np.zeros((2, 2)), [0, 1])}, "give both the same shape"),
        (Stream(), {}, "iterable Dataset without a length"),
    ],
)
def test_data_that_do_not_fit_are_named(source, options, says):
    with pytest.raises(PotluckError) as problem:
        as_data(source, name="mine", **options)
    assert says in str(problem.value)


def test_limit_below_one_and_unknown_names():
    with pytest.raises(PotluckError, match="limit is 0; it must be at least 1"):
        small().limit(0)
    with pytest.raises(PotluckError, match=r"Unknown data set 'digit'\. Did you mean 'digits'"):
        load_data("digit")


def test_importing_the_data_package_brings_no_heavy_library():
    script = (
        "import sys, potluck.data; "
        "print([m for m in ('sklearn', 'scipy', 'matplotlib', 'PIL', 'pandas') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
