"""Counts, the table of sizes, the bubble plot, and the shape of a published partition."""

import numpy as np
import pytest
from PIL import Image

from potluck.data import bubble_plot, counts, dirichlet, sizes_table

COUNTS = np.array([[8, 0, 2], [0, 1000, 0]])

# The counts of the 20-client CIFAR-10 partition (Dirichlet 0.1) that the authors of PFLlib publish with their
# code, as (class, samples) pairs per client.
PUBLISHED = [
    {1: 9, 3: 668, 4: 476, 5: 287, 6: 5, 7: 167, 9: 9},
    {0: 7, 1: 1, 2: 62, 4: 43, 7: 177, 8: 1524},
    {2: 16, 3: 158, 4: 1034, 5: 3},
    {1: 402, 2: 12, 3: 7, 6: 1, 8: 1, 9: 1657},
    {0: 24, 2: 5104},
    {0: 2832, 3: 1432},
    {0: 36, 2: 578, 3: 708, 4: 114, 8: 4},
    {1: 210, 2: 2, 3: 30, 4: 962, 5: 1, 7: 2, 9: 1415},
    {1: 18, 3: 137, 4: 11, 7: 2568, 8: 8, 9: 232},
    {0: 2, 3: 2511, 4: 723},
    {0: 454, 2: 2, 7: 53, 8: 655},
    {0: 9, 1: 744, 3: 7, 4: 187, 5: 5, 7: 93, 8: 226, 9: 693},
    {0: 248, 2: 2, 4: 360, 5: 1802, 6: 1, 8: 3581},
    {1: 21, 2: 3, 3: 237, 4: 96, 5: 1161, 7: 9},
    {1: 16, 4: 153, 5: 1, 7: 2930},
    {1: 1394, 2: 157, 3: 28, 4: 18, 6: 735, 9: 1993},
    {0: 2358, 1: 9, 2: 61, 3: 2, 4: 1822},
    {1: 3175},
    {0: 29, 3: 74, 5: 89, 6: 5257},
    {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 2651, 6: 1, 7: 1, 8: 1, 9: 1},
]


def test_counts():
    assert counts([0, 2, 1, 1], [np.array([0, 1]), np.array([2, 3])], 4).tolist() == [
        [1, 0, 1, 0],
        [0, 2, 0, 0],
    ]


def test_the_table_names_sizes_classes_and_the_largest_class():
    lines = sizes_table(COUNTS, ("cat", "dog", "owl")).splitlines()
    assert lines[1].split() == ["0", "10", "2", "cat", "(80%)"]
    assert lines[2].split() == ["1", "1,000", "1", "dog", "(100%)"]
    assert lines[3].split()[:3] == ["all", "1,010", "3"]
    assert "10 to 1,000, mean 505.0" in lines[3]
    assert "class 0" in sizes_table(COUNTS)
    assert "ward" in sizes_table(COUNTS, names=("ward", "home"))


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_bubble_plot_is_written(tmp_path, suffix):
    figure = bubble_plot(COUNTS, tmp_path / f"plot.{suffix}", "two clients", ("cat", "dog", "owl"))
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["cat", "dog", "owl"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("client", "class")
    content = (tmp_path / f"plot.{suffix}").read_bytes()
    if suffix == "png":
        with Image.open(tmp_path / "plot.png") as image:
            assert image.width > 600
    else:
        assert b"<svg" in content


def test_bubble_areas_are_in_proportion_to_the_counts():
    axes = bubble_plot(COUNTS).axes[0]
    drawn = axes.collections[0]
    np.testing.assert_array_equal(drawn.get_offsets(), [[0, 0], [0, 2], [1, 1]])  # client across, class up
    areas = drawn.get_sizes()
    np.testing.assert_allclose(areas / areas[1], [4, 1, 500])


def test_many_clients_and_classes_stay_legible():
    axes = bubble_plot(np.ones((120, 100), int)).axes[0]
    assert len(axes.get_xticks()) <= 25
    assert len(axes.get_yticks()) <= 25


def test_our_dirichlet_draws_look_like_the_published_one():
    published = np.zeros((20, 10), int)
    for client, row in enumerate(PUBLISHED):
        for label, encode_labels in row.items():
            published[client, label] = encode_labels
    assert published.sum() == 60000
    labels = np.repeat(np.arange(10), 6000)
    shapes = np.array(
        [_shape(counts(labels, dirichlet(0.1, 40).assign(labels, 20, seed), 10)) for seed in range(200)]
    )
    low, high = np.quantile(shapes, [0.01, 0.99], axis=0)
    shape = _shape(published)
    assert (low <= shape).all(), (low, shape)
    assert (shape <= high).all(), (high, shape)


def _shape(columns):
    """Filled cells, largest client, share of the largest class in the mean client, mean classes over 1 %."""
    sizes = columns.sum(axis=1, keepdims=True)
    shares = columns / sizes
    return np.array(
        [(columns > 9).sum(), sizes.max(), shares.max(axis=1).mean(), (shares > 0.01).sum(axis=1).mean()]
    )
