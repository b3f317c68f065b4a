"""No client weighs more than the configured share, whatever count it claims."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import potluck
from potluck.core.errors import PotluckError
from potluck.core.method import Update
from potluck.core.task import Averaging
from potluck.kit import ClassTable, Weights, average, update_class_table
from potluck.kit.averages import cap_counts, cap_weights
from support.tiny import context, tiny

HUGE = 10**9


def test_weights_worked_out_by_hand():
    assert cap_weights([3.0, 1.0, 1.0], 0.5) == [2.0, 1.0, 1.0]  # 2 is half of 4
    assert cap_weights([10.0, 10.0, 1.0, 1.0], 0.4) == pytest.approx([4.0, 4.0, 1.0, 1.0])  # 4 is 0.4 of 10
    assert cap_weights([1.0, 1.0, 1.0], 0.4) == [1.0, 1.0, 1.0]
    assert cap_weights([9.0, 4.0], 0.3) == [4.0, 4.0]  # two cannot both have less than half
    assert cap_weights([9.0], 0.5) == [9.0]
    assert cap_weights([8.0], 0.5, rest=4.0) == [4.0]  # as much as is missing
    assert cap_weights([5.0, 1.0], 1.0) == [5.0, 1.0]
    assert cap_weights([], 0.5) == []


@given(st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=9), st.floats(0.01, 0.99))
def test_weights_are_capped_and_never_raised(weights: list[float], share: float):
    bounded = cap_weights(weights, share)
    assert all(after <= before for after, before in zip(bounded, weights, strict=True))
    assert max(bounded) <= max(share, 1 / len(weights)) * sum(bounded) * (1 + 1e-9)
    if max(bounded) > min(bounded):  # who was lowered has all that is allowed, the others what they had
        lowered = [after for after, before in zip(bounded, weights, strict=True) if after < before]
        assert all(math.isclose(weight, share * sum(bounded), rel_tol=1e-6) for weight in lowered)


def claims(samples: list[int], values: list[float]) -> list[Update[Any]]:
    infos = tiny(len(samples)).task.clients
    return [
        Update(replace(info, samples=count), Weights({"w": torch.tensor([value])}))
        for info, count, value in zip(infos, samples, values, strict=True)
    ]


def mean_of(how: Averaging, updates: list[Update[Any]], **more: Any) -> float:
    ctx = replace(context(tiny(len(updates))), averaging=how, **more)
    old = {"w": torch.tensor([0.0])}
    return average(ctx, old, updates, lambda payload: payload.tensors, by="samples")["w"].item()


@pytest.mark.parametrize("rule", ["mean", "norm-clip"])
def test_a_claim_of_a_billion_rows_does_not_turn_the_average_around(rule: Any):
    """Three honest clients go up by 1. The fourth goes down, no further than they, and claims to have all the rows."""
    updates = claims([10, 10, 10, HUGE], [1.0, 1.0, 1.0, -1.0])
    assert mean_of(Averaging(rule), updates) == pytest.approx(-1.0)
    assert mean_of(Averaging(rule, max_share=0.25), updates) == pytest.approx(0.5)
    assert mean_of(Averaging(rule, max_share=0.4), updates) == pytest.approx(0.2)  # 0.6 · 1 − 0.4 · 1


def test_answers_that_come_one_by_one_are_bounded_as_well():
    (honest, liar) = claims([10, HUGE], [0.0, 1.0])
    latest = [replace(honest, fresh=False, sent=Weights({"w": torch.tensor([0.0])})),
              replace(liar, sent=Weights({"w": torch.tensor([0.0])}))]  # fmt: skip
    moved = mean_of(Averaging(), latest, cohort=4)
    assert moved == pytest.approx(0.25)  # one answer of four moves by a quarter of the mean change
    assert mean_of(Averaging(max_share=0.5), latest, cohort=4) == pytest.approx(0.125)


def test_counts_are_bounded_class_by_class():
    sent = [(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 2])), (torch.tensor([[9.0]]), torch.tensor([2]))]
    counts = [torch.tensor([7, 3]), torch.tensor([HUGE])]
    assert [count.tolist() for count in cap_counts(sent, counts, 0.5)] == [[7.0, 3.0], [3.0]]
    ctx = replace(context(tiny(2)), averaging=Averaging(max_share=0.5))
    old = ClassTable(torch.zeros(3, 1), torch.zeros(3, dtype=torch.bool))
    updates = claims([10, HUGE], [0.0, 0.0])
    table, _ = update_class_table(ctx, old, updates, sent, counts)
    assert table.rows.tolist() == [[1.0], [0.0], [5.5]]


def test_a_share_of_one_changes_no_bit(tmp_path: Path):
    settings = {"federation": tiny(3), "rounds": 2, "engine": "serial"}
    plain = potluck.run("fedavg", out=tmp_path / "plain", **settings)
    wide = potluck.run("fedavg", out=tmp_path / "wide", schedule={"max_share": 0.999}, **settings)
    assert [row["accuracy"] for row in plain.rounds] == [row["accuracy"] for row in wide.rounds]


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        ("fedgh", {}),
        ("fedproto", {}),
        ({"name": "fedavg", "weight": "uniform"}, {}),
        ("fedavg", {"robust": "median"}),
    ],
)
def test_a_share_that_could_not_act_is_refused(method: Any, schedule: dict[str, Any], tmp_path: Path):
    with pytest.raises(PotluckError, match=r"schedule.max_share = 0.5 has no effect"):
        potluck.run(
            {"method": method} if isinstance(method, dict) else method,
            federation=tiny(2), rounds=1, out=tmp_path / "x", schedule={"max_share": 0.5, **schedule},
        )  # fmt: skip
