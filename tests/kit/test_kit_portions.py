"""Averages over a part of a cohort move by its share, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
import torch

from potluck.core.method import Update
from potluck.core.task import Averaging, ClientInfo, Context
from potluck.kit import (
    ALL,
    ClassTable,
    ClassVectors,
    ClientVectors,
    RoundShare,
    SliceMean,
    Weights,
    average,
    average_vectors,
    initial_groups,
    initial_head,
    leading_indices,
    mean_change,
    new_values,
    round_share,
    sample_weights,
    split_by_group,
    sum_changes,
    update_class_table,
    vector_batches,
)
from support.families import deep
from support.tiny import context, tiny

USUAL = (5, 5, 5, 5)


def of_four(*samples: int) -> Context:
    """Four to a round, of clients with so many samples."""
    ctx = context(tiny(len(samples or USUAL), sizes=(5,)))
    infos = tuple(
        replace(info, samples=count) for info, count in zip(ctx.task.clients, samples or USUAL, strict=True)
    )
    return replace(ctx, cohort=4, task=replace(ctx.task, clients=infos))


def update(index: int = 0, samples: int = 5, payload: Any = None, **facts: Any) -> Update[Any]:
    return Update(ClientInfo(index, f"c{index}", samples, "net"), payload, **facts)


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_round_share_counts_fresh_updates_of_a_cohort():
    ctx, fresh = of_four(), [update(number) for number in range(4)]
    assert round_share(ctx, fresh) == RoundShare()
    assert round_share(ctx, fresh[:1]) == RoundShare(False, 0.25, 3)
    seen_before = [replace(answer, fresh=False) for answer in fresh[1:]]
    assert round_share(ctx, [fresh[0], *seen_before]) == RoundShare(False, 0.25, 0)
    assert round_share(ctx, [*fresh[:3], replace(fresh[3], staleness=1)]) == RoundShare(False, 1.0, 0)
    assert round_share(ctx, [*fresh[:3], replace(fresh[3], weight=0.5)]) == RoundShare(False, 1.0, 0)
    assert round_share(replace(ctx, cohort=0), fresh[:1]) == RoundShare()


@pytest.mark.parametrize("by", ["samples", "uniform"])
def test_missing_updates_count_as_average_clients_without_change(by: Any):
    """A change of 6 is one of four by a client of the mean size 20 (who has no data is no client), and a quarter of it goes."""
    ctx = of_four(10, 20, 0, 30)
    answer = update(1, samples=20)
    moved = mean_change(ctx, {"w": scalar(0.0)}, [answer], [{"w": scalar(6.0)}], by=by)
    assert moved["w"].item() == pytest.approx(0.25 * 6 / 4)


def test_weights_move_by_their_share_and_statistics_are_averaged():
    """From a message of 4 to 8 is a change of 4, a quarter of which goes; a variance of 5 is one of four, the others' 1."""
    old = {"w": scalar(0.0), "n.running_var": scalar(1.0)}
    answer = update(
        payload=Weights({"w": scalar(8.0), "n.running_var": scalar(5.0)}),
        sent=Weights({"w": scalar(4.0), "n.running_var": scalar(9.0)}),
    )
    moved = average(of_four(), old, [answer], lambda sent: sent.tensors, by="uniform")
    assert {name: tensor.item() for name, tensor in moved.items()} == {"w": 1.0, "n.running_var": 2.0}


def test_stale_answers_of_a_whole_round_count_less():
    answers = [update(0, 10), update(1, 30, weight=0.5)]
    assert sample_weights(answers) == [0.4, 0.6]
    answers = [
        replace(a, payload=Weights({"w": scalar(v)})) for a, v in zip(answers, (0.0, 4.0), strict=True)
    ]
    mean = average(context(), {"w": scalar(9.0)}, answers, lambda sent: sent.tensors, by="uniform")
    assert mean["w"].item() == pytest.approx(4 * 0.5 / 1.5)


def test_a_robust_sum_is_as_many_times_the_middle():
    changes = [scalar(value) for value in (1.0, 2.0, 9.0)]
    assert sum_changes(replace(context(), averaging=Averaging("median")), changes).item() == 6.0
    assert sum_changes(context(), changes).item() == 12.0


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 2.0), (0.5, 1.0)])
def test_known_rows_move_by_their_share_and_new_rows_are_taken(weight: float, expected: float):
    """Class 0 had 0 and one of four sends 8, of two samples each: a quarter of the way. Class 1 had none."""
    old = ClassTable(torch.zeros(3, 1, dtype=torch.float64), torch.tensor([True, False, False]))
    sent = [(torch.tensor([[8.0], [6.0]], dtype=torch.float64), torch.tensor([0, 1]))]
    counts = [torch.tensor([2, 2])]
    table, senders = update_class_table(of_four(), old, [update(weight=weight)], sent, counts)
    assert table.rows.flatten().tolist() == [expected, 6.0, 0.0]
    assert table.known.tolist() == [True, True, False]
    assert senders.tolist() == [1, 1, 0]


def test_a_group_misses_its_own_part_of_a_round():
    """One of a pair among eight answers of four to a round: three are missing, a quarter of them the pair's."""
    ctx = of_four(*[5] * 8)
    kinds = tuple(
        replace(info, architecture="rare" if info.index < 2 else "usual") for info in ctx.task.clients
    )
    ctx = replace(ctx, task=replace(ctx.task, clients=kinds))
    groups = split_by_group(ctx, {"rare": {}, "usual": {}}, [Update(kinds[0], None)])
    assert groups["rare"][1] == RoundShare(False, 1.0, 0.75)
    assert groups["usual"][0] == []
    answers = [Update(kinds[0], None, fresh=False), Update(kinds[5], None)]
    assert (
        split_by_group(ctx, {"rare": {}, "usual": {}}, answers)["rare"][0] == []
    )  # or its old statistics would enter again


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_slice_moves_its_entries_by_its_weighted_change(rule: Any):
    """Sent 1 and back with 3, at half weight: 1 more, of which one of four counts and a quarter goes."""
    old = torch.full((2,), 5.0, dtype=torch.float64)
    sent, returned = Weights({"w": scalar(1.0)[None]}), Weights({"w": scalar(3.0)[None]})
    mean = SliceMean(
        replace(of_four(), averaging=Averaging(rule)), {"w": old}, [update()], attrgetter("tensors")
    )
    mean.add(update(payload=returned, sent=sent, weight=0.5), leading_indices)
    assert mean.result()["w"].tolist() == [5.0 + 1.0 / 16, 5.0]


def test_names_that_several_have_begin_with_the_deepest_networks_values():
    task = deep((1, 1), (2, 2)).task
    deepest = max(task.architectures.values(), key=lambda architecture: len(architecture.initial))
    union = initial_groups(task, "layerwise", buffers=True)[ALL]
    assert union.keys() == deepest.initial.keys()
    assert all(torch.equal(union[name], tensor) for name, tensor in deepest.initial.items())


def test_a_common_first_head_is_a_copy():
    task = tiny(2).task
    initial_head(task)["weight"].zero_()
    assert next(iter(task.architectures.values())).initial["head.weight"].any()


def test_vectors_averaged_over_clients_count_as_one_clients():
    """Class 0 from both, class 1 from the second alone; weights 1 and ½ make ¾, however many clients there are."""
    info, rows = ClientInfo(0, "a", 1, "Net"), torch.tensor([[2.0], [4.0], [9.0]], dtype=torch.float64)
    clients = [
        ClientVectors(info, rows[:1], torch.tensor([0]), 1.0),
        ClientVectors(replace(info, index=1), rows[1:], torch.tensor([0, 1]), 0.5),
    ]
    (mean,) = average_vectors(clients, 3)
    assert (mean.vectors.tolist(), mean.labels.tolist(), mean.weight) == ([[3.0], [9.0]], [0, 1], 0.75)
    assert average_vectors([], 3) == []


def test_vector_batches_are_of_one_client_or_of_a_number_of_vectors():
    """Two clients with one and three vectors; one without any adds no batch."""
    info, rows = ClientInfo(0, "a", 1, "Net"), torch.arange(4.0)[:, None]
    labels = torch.tensor([2, 0, 1, 2])
    clients = [
        ClientVectors(info, rows[:1], labels[:1], 1.0),
        ClientVectors(info, rows[:0], labels[:0], 1.0),
        ClientVectors(info, rows[1:], labels[1:], 0.5),
    ]
    assert [batch[0].flatten().tolist() for batch in vector_batches(clients)] == [[0], [1, 2, 3]]
    assert [batch[1].tolist() for batch in vector_batches(clients, 3)] == [[2, 0, 1], [2]]
    assert [batch[2].tolist() for batch in vector_batches(clients, 3)] == [[1, 0.5, 0.5], [0.5]]
    ((values, ids, weights),) = vector_batches(clients, 4, torch.Generator().manual_seed(1))
    assert ids.tolist() == labels[values.flatten().long()].tolist() != labels.tolist()
    assert weights.tolist() == [1.0 if value == 0 else 0.5 for value in values.flatten()]


def test_new_values_leave_out_earlier_updates_and_missing_fields():
    updates = [
        update(0, payload=ClassVectors(scalar(1.0)[None, None], torch.tensor([0]))),
        update(1, payload=ClassVectors(scalar(2.0)[None, None])),
        update(2, payload=ClassVectors(scalar(3.0)[None, None]), fresh=False),
    ]
    assert [client.index for client, _ in new_values(updates, "rows")] == [0, 1]
    assert [client.index for client, _, _ in new_values(updates, "rows", "labels")] == [0]
