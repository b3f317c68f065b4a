"""Outlying class vectors are screened out before a server trains on them or stores them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from potluck.core.method import Update
from potluck.core.task import Averaging, ClientInfo
from potluck.kit import ClassLogits, ClassMeans, average_tensors
from potluck.kit import ClassMeans as Means
from potluck.kit.robust import (
    expected,
    robust_class_means,
    robust_weights,
    screen_models,
    screen_rows,
    update_weights,
)
from potluck.methods.fedgh import FedGH
from potluck.methods.fedhe import FedHe
from potluck.methods.fedtgp import FedTGP
from support.tiny import context, tiny, update

ROBUST = ("median", "trimmed-mean", "krum", "geometric-median")


def rows(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def squares(*values: float) -> tuple[Tensor, Tensor]:
    """Squared distances of points on a line, all of them there."""
    points = rows(*values)
    return (points - points.T).square()[None], torch.ones(1, len(values), dtype=torch.bool)


def test_as_many_attackers_as_are_expected_but_fewer_than_half():
    sent = torch.tensor([0, 1, 2, 3, 4, 5, 10, 20])
    assert expected(Averaging("krum", 0.3), sent).tolist() == [0, 0, 0, 1, 1, 2, 3, 6]
    assert expected(Averaging("krum", 0.1), sent).tolist() == [0, 0, 0, 1, 1, 1, 1, 2]
    assert expected(Averaging("krum", 0.0), sent).tolist() == [0] * 8


def test_krum_keeps_updates_close_to_each_other():
    weights = robust_weights(Averaging("krum", 0.25), *squares(0.0, 1.0, 2.0, 100.0))
    assert weights.tolist() == [[pytest.approx(1 / 3)] * 3 + [0.0]]
    two = robust_weights(Averaging("krum", 0.4), *squares(0.0, 0.1, 50.0, 50.2, 0.2))  # two of five may lie
    assert [weight > 0 for weight in two[0].tolist()] == [True, True, False, False, True]
    assert robust_weights(Averaging("krum"), *squares(7.0)).tolist() == [[1.0]]


def test_krum_counts_two_neighbours_fewer_than_are_honest():
    """One of five may lie: sums over 5 - 1 - 2 = 2 neighbours are 37, 26, 17, 10, 25; over three the last has most."""
    weights = robust_weights(Averaging("krum", 0.2), *squares(0.0, 1.0, 6.0, 7.0, 10.0))
    assert weights.tolist() == [[0.0] + [pytest.approx(1 / 4)] * 4]


def test_the_geometric_median_is_nearest_to_all():
    """On a line it is the median; in the plane the vertex of a wide angle, and the centre of what is symmetric."""
    line = rows(0.0, 1.0, 10.0)
    weights = robust_weights(Averaging("geometric-median"), *squares(0.0, 1.0, 10.0))
    assert float(weights[0] @ line[:, 0]) == pytest.approx(1.0, abs=1e-3)
    leading_indices = torch.tensor([[0.0, 0.0], [1.0, 0.2], [-1.0, 0.2]], dtype=torch.float64)
    median = robust_class_means(
        Averaging("geometric-median"), leading_indices, torch.zeros(3, dtype=torch.int64), 1
    )
    assert median[0].tolist() == pytest.approx([0.0, 0.0], abs=1e-3)
    square = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]], dtype=torch.float64)
    median = robust_class_means(Averaging("geometric-median"), square, torch.zeros(4, dtype=torch.int64), 1)
    assert median[0].tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("rule", ["krum", "geometric-median"])
def test_class_means_use_only_clients_with_the_class(rule: Any):
    """Class 0 has four senders of whom one lies, class 1 one sender, class 2 nobody."""
    sent, labels = rows(1.0, 1.2, 5.0, 0.9, 900.0), torch.tensor([0, 0, 1, 0, 0])
    class_means = robust_class_means(Averaging(rule), sent, labels, 3).flatten().tolist()
    assert 0.8 < class_means[0] < 1.3
    assert class_means[1:] == [pytest.approx(5.0), 0.0]


def test_whole_answers_are_compared_by_the_names_they_share():
    parts = [
        {"a": torch.zeros(2)},
        {"a": torch.full((2,), 0.1), "b": torch.ones(1)},
        {"a": torch.full((2,), 9.0)},
    ]
    weights = update_weights(Averaging("krum"), parts)
    assert weights == [0.5, 0.5, 0.0]
    average = average_tensors(Averaging("krum"), {"a": torch.zeros(2), "b": torch.zeros(1)}, parts)
    assert average["a"].tolist() == pytest.approx([0.05, 0.05])
    assert average["b"].tolist() == [1.0]
    assert update_weights(Averaging("krum"), [{"a": torch.ones(1)}, {"b": torch.ones(1)}]) == [0.5, 0.5]


HONEST = [(rows(1.0, 2.0), torch.tensor([0, 1])), (rows(1.2, 2.2), torch.tensor([0, 1])), (rows(0.9), torch.tensor([0])),
          (rows(2.1, 7.0), torch.tensor([1, 3]))]  # fmt: skip
LIAR = (rows(-10.0, -20.0, -3.0), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("rule", ROBUST)
def test_single_sender_of_a_class_is_not_trusted(rule: Any):
    """Its class 2, which no other client holds, is left out with the rest; the honest client's class 3 stays."""
    screened, masks = screen_rows(Averaging(rule), [*HONEST, LIAR], 4)
    assert [mask.tolist() for mask in masks] == [
        [True, True],
        [True, True],
        [True],
        [True, True],
        [False] * 3,
    ]
    assert screened[3][1].tolist() == [1, 3]
    assert screened[3][0].flatten().tolist() == pytest.approx(
        [2.1, 3 * 2.0]
    )  # thrice the median length at most
    assert len(screened[4][0]) == len(screened[4][1]) == 0


def test_the_mean_screens_nothing():
    screened, masks = screen_rows(Averaging(), [*HONEST, LIAR], 4)
    assert all(
        screened_row[0] is sent_row[0]
        for screened_row, sent_row in zip(screened, [*HONEST, LIAR], strict=True)
    )
    assert all(mask.all() for mask in masks)


def test_norms_are_bounded_per_class():
    screened, _ = screen_rows(Averaging("norm-clip"), [*HONEST, LIAR], 4)
    # Lengths of class 0: 0.9, 1, 1.2, 10, median 1.1; of class 1: 2, 2.1, 2.2, 20, median 2.15; of all rows: 2.1.
    assert screened[4][0].flatten().tolist() == pytest.approx([-1.1, -2.15, -2.1])
    assert screened[0][0].flatten().tolist() == pytest.approx([1.0, 2.0])


def test_two_senders_cannot_judge_each_other():
    sent = [(rows(1.0), torch.tensor([0])), (rows(-1.0), torch.tensor([0]))]
    _, masks = screen_rows(Averaging("median"), sent, 1)
    assert all(mask.all() for mask in masks)


def test_whole_answers_far_from_the_others_are_not_trusted():
    parts = [{"w": torch.tensor([value])} for value in (1.0, 1.1, 1.2, 40.0)]
    screened = screen_models(Averaging("median"), {"w": torch.zeros(1)}, parts)
    assert [state is not None for state in screened] == [True, True, True, False]
    clipped = screen_models(Averaging("norm-clip"), {"w": torch.zeros(1)}, parts)
    assert clipped[3] is not None
    assert clipped[3]["w"].item() == pytest.approx(1.15)


def means(kind: Any, index: int, scale: float = 1.0) -> Update[Any]:
    """Class means of three classes, nearly alike for all clients."""
    table = scale * (torch.eye(3, dtype=torch.float64) + 0.05 * index)
    return update(kind(table, torch.arange(3)), index)


@pytest.mark.parametrize(("method", "kind"), [(FedGH(), ClassMeans), (FedTGP(server_epochs=3), Means)])
def test_a_server_that_trains_learns_as_if_the_liar_had_not_come(method: Any, kind: Any):
    honest = [means(kind, index) for index in range(4)]
    ctx = replace(context(tiny()), averaging=Averaging("geometric-median"))

    def learned(updates: list[Update[Any]], ctx: Any) -> dict[str, Tensor]:
        state = method.server(method.init_server(ctx), updates, ctx)
        return getattr(state, "module", state).state_dict()

    expected_state = learned(honest, context(tiny()))
    with_liar = learned([*honest, means(kind, 4, -10.0)], ctx)
    assert all(torch.equal(with_liar[name], expected_state[name]) for name in expected_state)
    plain = learned([*honest, means(kind, 4, -10.0)], context(tiny()))
    assert not all(torch.equal(plain[name], expected_state[name]) for name in expected_state)


def test_the_store_takes_nothing_that_lies_far_from_the_others_latest():
    """One answer at a time: before three clients were heard nothing is believed, later the liar is found out."""
    method, ctx = FedHe(), replace(context(tiny(5)), averaging=Averaging("median"), cohort=5)
    state = method.init_server(ctx)

    def answer(index: int, scale: float, fresh: bool) -> Update[Any]:
        logits = scale * (torch.eye(3, dtype=torch.float64) + 0.1 * index)
        info = ClientInfo(index, f"client-{index}", 4, "Net")
        return Update(info, ClassLogits(logits, torch.arange(3)), fresh=fresh)

    state = method.server(state, [answer(0, 1.0, True), answer(1, 1.0, False)], ctx)
    assert float(state.count.sum()) == 0
    trusted = [answer(0, 1.0, False), answer(1, 1.0, False), answer(3, 1.0, False)]
    state = method.server(state, [*trusted, answer(2, 1.0, True)], ctx)
    assert state.count.tolist() == [1.0, 1.0, 1.0]
    before = state.total.clone()
    state = method.server(state, [*trusted, answer(4, -10.0, True)], ctx)
    assert torch.equal(state.total, before)
    state = method.server(state, [*trusted, answer(4, -10.0, True)], replace(ctx, averaging=Averaging()))
    assert state.count.tolist() == [2.0, 2.0, 2.0]


def test_three_rows_are_enough_for_a_class_to_have_its_own_median_length():
    """Lengths 1, 2 and 3 of class 0: the longest is shortened to 2. The median of all six rows would be 3."""
    labels = torch.tensor([0, 1])
    sent = [(rows(value, 10.0), labels) for value in (1.0, 2.0, 3.0)]
    screened, _ = screen_rows(Averaging("norm-clip"), sent, 2)
    assert [each[0].item() for each, _ in screened] == pytest.approx([1.0, 2.0, 2.0])


def test_three_rows_are_enough_to_judge_a_class():
    """Distances to the median 1.1 are 0.1, 0 and 98.9: the last is beyond three times the median distance."""
    sent = [(rows(value), torch.tensor([0])) for value in (1.0, 1.1, 100.0)]
    _, masks = screen_rows(Averaging("median"), sent, 1)
    assert [bool(mask[0]) for mask in masks] == [True, True, False]
