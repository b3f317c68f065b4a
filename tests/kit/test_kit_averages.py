"""One poisoned answer of ten ruins the mean and none of the robust averages."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor

from potluck.core import tree
from potluck.core.task import Averaging
from potluck.core.training import Training
from potluck.engines.serial import SerialEngine
from potluck.experiment import make_method, parse_experiment
from potluck.kit import SliceMean, Weights, average_tensors, mean_by_class
from potluck.kit.robust import clip_changes, coordinatewise_average, robust_class_means
from potluck.loop.loop import Loop
from potluck.loop.schedule import Evaluation, Schedule
from potluck.methods import method_class
from potluck.methods.fd import FD
from potluck.testing import small_federation
from potluck.wire.jobs import Answer, Failure
from potluck.worker.worker import Worker
from support.tiny import Recorder, context, make_loop, tiny, update

ROBUST = ("median", "trimmed-mean", "norm-clip")
WHOLE = ("krum", "geometric-median")
VALUES = torch.tensor([1.0, 2.0, 3.0, 4.0, 1000.0])


def test_middles_worked_out_by_hand():
    assert coordinatewise_average(Averaging("median"), VALUES) == 3.0
    assert coordinatewise_average(Averaging("median"), VALUES[:4]) == 2.5
    assert (
        coordinatewise_average(Averaging("trimmed-mean"), VALUES) == 3.0
    )  # 10 % of five is none, but one is always left out
    assert coordinatewise_average(Averaging("trimmed-mean", 0.4), VALUES) == 3.0
    assert coordinatewise_average(Averaging("trimmed-mean"), VALUES[:2]) == 1.5
    assert coordinatewise_average(Averaging("trimmed-mean", 0.2), torch.arange(10.0)) == 4.5


def test_absent_values_do_not_count():
    stack = torch.tensor([[1.0, float("nan")], [2.0, 7.0], [9.0, float("nan")]])
    assert coordinatewise_average(Averaging("median"), stack).tolist() == [2.0, 7.0]
    assert coordinatewise_average(Averaging("trimmed-mean"), stack).tolist() == [2.0, 7.0]
    assert coordinatewise_average(Averaging("median"), torch.full((2, 1), float("nan"))).tolist() == [0.0]


def test_long_changes_are_clipped_to_the_median_length():
    old = {"w": torch.tensor([1.0, 1.0])}
    parts = [
        {"w": torch.tensor([4.0, 5.0])},
        {"w": torch.tensor([1.0, 3.0])},
        {"w": torch.tensor([61.0, 81.0])},
    ]
    clipped = clip_changes(parts, old)  # lengths 5, 2, 100: the median is 5
    assert [part["w"].tolist() for part in clipped] == [[4.0, 5.0], [1.0, 3.0], [4.0, 5.0]]


def test_rows_are_taken_per_class():
    rows, labels = torch.tensor([[1.0], [5.0], [3.0], [900.0]]), torch.tensor([0, 2, 0, 0])
    median = Averaging("median")
    assert robust_class_means(median, rows, labels, 3).flatten().tolist() == [3.0, 0.0, 5.0]
    sent = [(rows[:2], labels[:2]), (rows[2:3], labels[2:3]), (rows[3:], labels[3:])]
    table, senders = mean_by_class(sent, 3, how=median)
    assert table.flatten().tolist() == [3.0, 0.0, 5.0]
    assert senders.tolist() == [3, 0, 1]
    clipped = robust_class_means(Averaging("norm-clip"), rows, labels, 3)
    assert clipped.flatten().tolist() == pytest.approx([7 / 3, 0.0, 5.0])  # 900 becomes 3, the median length


@pytest.mark.parametrize("rule", ["mean", *ROBUST])
def test_slices_keep_entries_that_no_client_holds(rule: Any):
    old = {"w": torch.zeros(3)}
    mean = SliceMean(replace(context(), averaging=Averaging(rule)), old, [], attrgetter("tensors"))
    for value in (1.0, 2.0, 1e6):
        mean.add(update(Weights({"w": torch.tensor([value])})), lambda size, full: torch.tensor([0]))
    mean.add(update(Weights({"w": torch.tensor([4.0])})), lambda size, full: torch.tensor([1]))
    result = mean.result()["w"]
    assert result[2] == 0.0
    assert (result[0] > 1e5) == (rule == "mean")


def test_configured_rule_is_the_one_applied():
    parts = [{"w": torch.tensor([value])} for value in (1.0, 2.0, 9.0)]
    weights = [0.25, 0.25, 0.5]
    assert average_tensors(Averaging("mean"), parts[0], parts, weights)["w"].item() == 5.25
    assert average_tensors(Averaging("median"), parts[0], parts, weights)["w"].item() == 2.0
    assert average_tensors(Averaging("mean"), parts[0], parts)["w"].item() == 4.0


def huge(tensor: Tensor) -> Tensor:
    """Finite numbers that pass every check, in random directions."""
    if not tensor.is_floating_point():
        return tensor
    return 1e6 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)).abs().to(tensor.dtype)


AVERAGING = (
    "fedavg", "lg-fedavg", "fedproto", "fd", "heterofl", "scaffold", "fml", "fedmd", "inclusivefl", "fednova", "fedhe",
    "fedl2g-l", "fedgen",
)  # fmt: skip


@pytest.mark.parametrize("name", AVERAGING)
def test_one_poisoned_client_of_ten_moves_only_the_mean(name: str):
    """Ten honest answers give a state; replacing one by huge numbers moves only the mean far from it."""
    settings = {"fedl2g-l": {"server_clip": None}, "fedgen": {"variant": "original"}}
    method = make_method(method_class(name), settings.get(name, {}))
    watcher = Recorder()
    fed = small_federation(method, clients=10, samples=6, classes=[(0, 1, 2)])
    loop = make_loop(method, fed, evaluation=Evaluation(every=9), callbacks=[watcher])
    start = copy.deepcopy(loop.progress.state)
    loop.step()
    honest = [update for _, update in watcher.updates]
    poisoned = [replace(u, payload=u.payload.map(huge)) if u.client.index == 3 else u for u in honest]

    def state(updates: Any, rule: Any) -> list[Tensor]:
        context = replace(loop.server.context(), averaging=Averaging(rule))
        after = method.server(copy.deepcopy(start), updates, context)
        return [tensor for tensor in tree.tensors_in(after) if tensor.is_floating_point()]

    def distance(rule: Any) -> float:
        pairs = zip(state(poisoned, rule), state(honest, "mean"), strict=True)
        return max(
            float((actual - expected).abs().max())
            for actual, expected in pairs
            if actual.shape == expected.shape
        )

    assert distance("mean") > 1e3
    for rule in (*ROBUST, *(WHOLE if method.supports.comparable else ())):
        assert distance(rule) < 20, rule


class Poisoner(SerialEngine):
    """An engine in whose world client 3 sends finite, huge numbers."""

    def results(self) -> Iterator[Answer | Failure]:
        for result in super().results():
            if isinstance(result, Answer) and result.client == 3 and result.payload is not None:
                result = replace(result, payload=result.payload.map(huge))
            yield result


def test_the_other_nine_still_learn():
    """The whole loop: accuracies of FD's ten clients after three rounds."""

    def accuracy(rule: Any) -> float:
        fed = tiny(10, hidden=(5,), training=Training(epochs=3, batch_size=4, lr=0.2))
        plan = Schedule(3, robust=rule, min_clients=0, on_failure="continue")
        engine, watcher = Poisoner(Worker(FD(), fed.client)), Recorder()
        Loop(FD(), fed.task, engine, plan, Evaluation(every=3), [watcher]).run()
        return sum(score.score.accuracy for score in watcher.end.scores) / 10

    assert accuracy("mean") < 0.6
    assert accuracy("median") > 0.8


def test_the_experiment_says_which_average():
    experiment = parse_experiment({"schedule": {"robust": "trimmed-mean", "attackers": 0.2}})
    loop = make_loop(experiment.build_method(), tiny(2), robust="trimmed-mean", attackers=0.2)
    assert loop.server.context().averaging == experiment.schedule.averaging == Averaging("trimmed-mean", 0.2)
