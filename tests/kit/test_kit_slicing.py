"""Slices of wide tensors, and the mean of returned slices."""

from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
import torch

from potluck.core.task import Averaging
from potluck.kit import SliceMean, Weights, leading_indices, take_slices
from support.tiny import context, update


def rolled(size: int, full: int) -> torch.Tensor:
    return (1 + torch.arange(size)) % full


def test_the_corner_keeps_the_first_rows_and_columns():
    wide = {"w": torch.arange(16.0).reshape(4, 4), "b": torch.arange(4.0), "s": torch.tensor(7.0)}
    part = take_slices(wide, {"w": (2, 2), "b": (2,), "s": ()}, leading_indices)
    assert part["w"].tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert part["b"].tolist() == [0.0, 1.0]
    assert part["s"].item() == 7.0
    part["w"].zero_()
    assert wide["w"][0, 1] == 1.0


def test_whole_dimensions_are_not_rolled():
    wide = {"w": torch.arange(12.0).reshape(3, 4)}
    assert take_slices(wide, {"w": (3, 2)}, rolled)["w"].tolist() == [[1.0, 2.0], [5.0, 6.0], [9.0, 10.0]]
    assert take_slices(wide, {"w": (2, 4)}, rolled)["w"].tolist() == wide["w"][[1, 2]].tolist()


def test_a_slice_comes_back_to_where_it_was_taken():
    wide = {"w": torch.arange(16.0).reshape(4, 4)}
    part = take_slices(wide, {"w": (3, 2)}, rolled)["w"]
    mean = SliceMean(context(), {"w": torch.zeros(4, 4)}, [], attrgetter("tensors"))
    mean.add(update(Weights({"w": part})), rolled)
    expected = torch.zeros(4, 4)
    expected[1:, 1:3] = wide["w"][1:, 1:3]
    assert torch.equal(mean.result()["w"], expected)


def test_each_scalar_is_averaged_over_its_holders_and_others_keep_their_value():
    mean = SliceMean(context(), {"w": torch.full((3, 3), 9.0)}, [], attrgetter("tensors"))
    mean.add(update(Weights({"w": torch.full((2, 2), 4.0)})), leading_indices)
    mean.add(update(Weights({"w": torch.full((1, 1), 2.0)})), leading_indices)
    assert mean.result()["w"].tolist() == [[3.0, 4.0, 9.0], [4.0, 4.0, 9.0], [9.0, 9.0, 9.0]]


@pytest.mark.parametrize(("rule", "sent"), [("median", (1.0, 2.0, 9.0)), ("norm-clip", (2.0, 2.0, 2.0))])
def test_a_scalar_that_no_slice_has_keeps_its_value_under_a_robust_rule(rule: Any, sent: tuple[float, ...]):
    old = {"w": torch.full((4,), 5.0)}
    mean = SliceMean(
        replace(context(), averaging=Averaging(rule)), old, [], attrgetter("tensors"), whole=True
    )
    for value in sent:
        mean.add(update(Weights({"w": torch.full((2,), value)})), leading_indices)
    assert mean.result()["w"].tolist() == [2.0, 2.0, 5.0, 5.0]


def test_a_missing_answer_counts_as_no_change_in_a_median_of_slices():
    """Two of three answers raise 10 to 16: two thirds of a round, and the third answer's change is 0 where it is
    missing: 10 + 2/3 · 6 · 2/3 where both have the scalar, 10 + 2/3 · 6 · 1/2 where one has it."""
    old = {"w": torch.full((3,), 10.0)}
    answers = [update(Weights({"w": torch.full((size,), 16.0)}), index) for index, size in enumerate((2, 1))]
    ctx = replace(context(), averaging=Averaging("median"), cohort=3)
    mean = SliceMean(ctx, old, answers, attrgetter("tensors"))
    for each in answers:
        mean.add(each, leading_indices)
    assert mean.result()["w"].tolist() == pytest.approx([10 + 8 / 3, 12.0, 10.0])
