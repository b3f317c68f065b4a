"""Augmentation: allowed changes, their frequency and their random stream."""

import pytest
import torch

from potluck.core.errors import PotluckError
from potluck.core.random import generator
from potluck.data import augmentation
from potluck.data.augment import AUGMENTATIONS

ONES = torch.ones(4000, 1, 32, 32)


def numbered(n=200, side=8):
    """Images whose pixels are all different and never 0."""
    return torch.arange(1, n * 3 * side * side + 1, dtype=torch.float64).reshape(n, 3, side, side)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_stream_decides_and_the_batch_is_left_alone(name):
    x = numbered(side=20)
    original = x.clone()
    change = augmentation([name])
    first = change(x, generator(1, "a"))
    assert torch.equal(first, change(x, generator(1, "a")))
    assert not torch.equal(first, change(x, generator(2, "a")))
    assert torch.equal(x, original)
    assert first.dtype == x.dtype
    assert first.shape == x.shape
    assert first.is_contiguous()


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_global_random_state_is_not_touched(name):
    before = torch.get_rng_state()
    augmentation([name])(numbered(), generator(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_half_of_the_images_are_mirrored_whole():
    x = numbered(2000)
    out = augmentation(["flip"])(x, generator(0))
    mirrored = (out == x.flip(-1)).flatten(1).all(1)
    same = (out == x).flatten(1).all(1)
    assert bool((mirrored ^ same).all())
    assert mirrored.double().mean() == pytest.approx(0.5, abs=0.05)


def test_a_crop_is_a_shift_of_the_padded_image():
    x = numbered(300)
    out = augmentation(["crop"])(x, generator(0))
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    starts = set()
    for image, padded_image in zip(out, padded, strict=True):
        fits = [
            (top, column)
            for top in range(9)
            for column in range(9)
            if torch.equal(image, padded_image[:, top : top + 8, column : column + 8])
        ]
        assert len(fits) == 1
        starts.add(fits[0])
    assert {top for top, _ in starts} == set(range(9))
    assert {column for _, column in starts} == set(range(9))


def holes(out):
    """Height, width and area of the zero rectangle of each image, which must be one full rectangle."""
    zero = out[:, 0] == 0
    tall, wide = zero.any(2).sum(1), zero.any(1).sum(1)
    assert torch.equal(zero.sum((1, 2)), tall * wide)
    return tall, wide, tall * wide


def test_erasing_takes_one_rectangle_of_the_stated_size_from_half_of_the_images():
    tall, wide, area = holes(augmentation(["erase"])(ONES, generator(0)))
    hit = area > 0
    assert hit.double().mean() == pytest.approx(0.5, abs=0.03)
    share = area[hit] / 1024
    # Sides are rounded to whole pixels, so the bounds 0.04 … 0.2 and 1:2 … 2:1 hold to half a pixel per side.
    assert share.min() >= 0.04 * 0.85
    assert share.max() <= 0.2 * 1.08
    assert share.mean() == pytest.approx(0.12, abs=0.004)
    ratio = tall[hit] / wide[hit]
    assert ratio.min() >= 0.5 * 0.8
    assert ratio.max() <= 2 * 1.25
    assert ratio.double().log().mean() == pytest.approx(0, abs=0.03)


def test_erased_rectangles_reach_every_part_of_the_image():
    out = augmentation(["erase"])(ONES, generator(0))
    often = (out == 0).double().mean((0, 1))
    assert often.min() > 0
    assert often[16, 16] > often[0, 0]


def test_cutout_is_a_square_of_sixteen_cut_off_at_the_border():
    tall, wide, _ = holes(augmentation(["cutout"])(ONES, generator(0)))
    assert (tall.min(), tall.max()) == (8, 16)
    assert (wide.min(), wide.max()) == (8, 16)
    # The centre is uniform over 32 rows; 17 of them leave all 16 rows inside: rows 8 … 24.
    assert (tall == 16).double().mean() == pytest.approx(17 / 32, abs=0.03)


def test_changes_follow_one_another_and_none_is_the_default():
    x = numbered()
    rng = generator(3)
    by_hand = AUGMENTATIONS["crop"](AUGMENTATIONS["flip"](x, rng), rng)
    assert torch.equal(augmentation(["flip", "crop"])(x, generator(3)), by_hand)
    assert augmentation([])(x, generator(3)) is x
    assert augmentation([])(torch.zeros(2, 5), generator(3)).shape == (2, 5)


def test_unknown_names_and_tables():
    with pytest.raises(PotluckError, match=r"Unknown augmentation 'flipp'\. Did you mean 'flip'"):
        augmentation(["flipp"])
    with pytest.raises(PotluckError, match=r"needs images .* shape \(2, 5\); leave augmentation empty"):
        augmentation(["flip"])(torch.zeros(2, 5), generator(0))
