"""Asynchronous answers, fresh or stale: invariants of every method's server."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.method import Update
from potluck.core.task import ClientInfo, Context
from potluck.experiment import make_method, parse_experiment
from potluck.kit import Weights, average, average_groups, split_by_group
from potluck.loop.schedule import Schedule
from potluck.methods import METHODS, method_class
from potluck.runs.resolve import choose_settings
from potluck.testing import small_federation
from support.tiny import Recorder, context, make_loop, tiny

QUICK: dict[str, dict[str, Any]] = {"fedtgp": {"server_epochs": 40}, "fedgen": {"server_steps": 40}}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("fedproto", {"aggregate": "weighted"}),
    ("fedhe", {"store": "latest_per_client"}),
    ("fedavg", {"aggregate": "same_arch", "weight": "uniform"}),
    ("fedl2g-l", {"divide_by": "participants"}),
    ("fedkd", {"uplink": "params"}),
    ("fedin", {"common_start": True}),
]
CASES = [(name, QUICK.get(name, {})) for name in METHODS if name != "standalone"] + VARIANTS
COHORT = 10

every_method = pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value))
repeated = pytest.mark.parametrize(
    ("name", "options"), [case for case in CASES if case[0] != "fedcgs"], ids=lambda value: str(value)
)
"""All methods but FedCGS: it adds a client's sums once, at full weight however late, and nothing after that."""


@functools.cache
def scene(name: str, options: tuple[tuple[str, Any], ...]) -> tuple[Any, Any, Context, list[Update[Any]]]:
    """A method in the middle of a run: its state, and the answers of the next round with what each was sent."""
    method = make_method(method_class(name), dict(options))
    recorder = Recorder()
    loop = make_loop(method, small_federation(method, dtype=torch.float64), rounds=9, callbacks=[recorder])
    for _ in range(3):
        loop.step()
    state = copy.deepcopy(loop.progress.state)
    recorder.updates.clear()
    loop.step()
    return method, state, loop.server.context(), [update for _, update in recorder.updates]


def served(name: str, options: dict[str, Any], updates: Any, *, cohort: int = COHORT) -> tuple[Any, float]:
    """The state after a step that is given some of the scene's answers, and how far it moved."""
    method, before, ctx, answers = scene(name, tuple(options.items()))
    state = copy.deepcopy(before)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        after = method.server(state, updates(answers), replace(ctx, cohort=cohort, notes={}))
    return after, distance(before, after)


def learned(state: Any) -> dict[str, torch.Tensor]:
    """What a method learns: real numbers, without FedIN's store of features, FedKD's second copy and what FedGen's server makes of the heads."""
    return {
        name: tensor
        for name, tensor in tree.flatten(state).tensors.items()
        if tensor.is_floating_point()
        and not any(word in name for word in ("entering", "leaving", "/sent", "latest", "generator"))
    }


def meaning(state: Any) -> dict[str, torch.Tensor]:
    """FedHe's state is a sum and a count; what it means is their quotient."""
    if hasattr(state, "total"):
        return {"mean": state.total / state.count.clamp(min=1e-9)[:, None]}
    return learned(state)


def distance(actual: Any, expected: Any) -> float:
    first, second = meaning(actual), meaning(expected)
    return sum(float((second[name] - first[name]).square().sum()) for name in first if name in second) ** 0.5


@every_method
def test_a_full_fresh_cohort_is_the_synchronous_step_bit_for_bit(name: str, options: dict[str, Any]):
    together, _ = served(name, options, lambda answers: answers, cohort=3)
    waited, _ = served(name, options, lambda answers: answers, cohort=0)
    waited_state, together_state = tree.flatten(together), tree.flatten(waited)
    assert waited_state.tensors.keys() == together_state.tensors.keys()
    assert all(
        torch.equal(waited_state.tensors[key], together_state.tensors[key]) for key in waited_state.tensors
    )


@repeated
def test_one_of_ten_updates_moves_the_state_by_about_its_share(name: str, options: dict[str, Any]):
    """As if all ten had sent the same: that would be a whole round's way, and one of them goes a part of it."""
    _, alone = served(name, options, lambda answers: answers[:1])
    _, final_state = served(
        name, options, lambda answers: [as_client(answers[0], number) for number in range(COHORT)], cohort=0
    )
    assert alone > 0
    assert alone <= 0.35 * final_state


def as_client(update: Update[Any], number: int) -> Update[Any]:
    return replace(update, client=replace(update.client, index=number, name=f"client-{number}"))


@repeated
def test_staler_updates_move_the_state_less(name: str, options: dict[str, Any]):
    def stale(weight: float) -> float:
        return served(name, options, lambda answers: [replace(answers[0], staleness=3, weight=weight)])[1]

    fresh, old, ancient = stale(1.0), stale(0.5), stale(0.1)
    assert fresh > old > ancient > 0


@every_method
def test_the_same_answer_twice_is_no_catastrophe(name: str, options: dict[str, Any]):
    method, before, ctx, answers = scene(name, tuple(options.items()))
    state, ways = copy.deepcopy(before), []
    for _ in range(2):
        last = copy.deepcopy(state)
        state = method.server(state, answers[:1], replace(ctx, cohort=COHORT, notes={}))
        ways.append(distance(last, state))
    assert tree.is_finite(state)
    assert ways[1] <= 1.5 * ways[0]


def test_the_example_of_one_stale_answer():
    """Old 0, a client that was sent 0 answers 4 with weight 0.1, ten to a round: a hundredth of the way, not 4."""
    answer = Update(
        ClientInfo(0, "c", 5, "net"),
        Weights({"w": torch.tensor(4.0)}),
        3,
        0.1,
        Weights({"w": torch.tensor(0.0)}),
    )
    ctx = replace(context(tiny(10, sizes=(5,))), cohort=10)
    moved = average(ctx, {"w": torch.tensor(0.0)}, [answer], lambda sent: sent.tensors, by="samples")
    assert moved["w"].item() == pytest.approx(4 * 0.1 / 10)


def test_latest_answers_of_others_keep_fast_clients_from_outvoting_slow_ones():
    """Client 0 answers over and over with +1, client 1 once with −1: their changes count alike at every step."""
    infos = [ClientInfo(index, f"c{index}", 5, "net") for index in range(2)]
    zero = Weights({"w": torch.tensor(0.0)})
    fast = Update(infos[0], Weights({"w": torch.tensor(1.0)}), sent=zero)
    slow = Update(infos[1], Weights({"w": torch.tensor(-1.0)}), sent=zero, fresh=False)
    ctx, state = replace(context(tiny(2, sizes=(5,))), cohort=2), {"w": torch.tensor(0.0)}
    for _ in range(10):
        state = average(ctx, state, [fast, slow], lambda sent: sent.tensors, by="samples")
    assert state["w"].item() == 0.0


def pair_of_ten(number: int, value: float, *, fresh: bool) -> Update[Any]:
    """An answer of one of two clients with a network of their own, beside eight others; both were sent zero."""
    zero = Weights({"w": torch.tensor(0.0)})
    return Update(
        ClientInfo(number, f"c{number}", 5, "rare"),
        Weights({"w": torch.tensor(value)}),
        sent=zero,
        fresh=fresh,
    )


def ten_of_two_kinds() -> Context:
    ctx = context(tiny(10, sizes=(5,)))
    infos = tuple(
        replace(info, architecture="rare" if number < 2 else "usual")
        for number, info in enumerate(ctx.task.clients)
    )
    return replace(ctx, cohort=10, task=replace(ctx.task, clients=infos))


def test_a_group_is_a_federation_of_its_own():
    """Of a pair one answers +4, the other's latest was −2: half of a round's way along their mean, and not a tenth."""
    groups = {"rare": {"w": torch.tensor(0.0)}, "usual": {"w": torch.tensor(7.0)}}
    answers = [pair_of_ten(0, 4.0, fresh=True), pair_of_ten(1, -2.0, fresh=False)]
    groups_found = split_by_group(ten_of_two_kinds(), groups, answers)
    assert groups_found["rare"][1].share == pytest.approx(0.5)  # not a tenth
    assert groups_found["usual"][0] == []
    moved = average_groups(ten_of_two_kinds(), groups, answers, lambda sent: sent.tensors, by="samples")
    assert moved["rare"]["w"].item() == pytest.approx(0.5 * (4.0 - 2.0) / 2)
    assert moved["usual"]["w"].item() == 7.0


def test_group_without_answers_is_unchanged():
    """Others' answers are no reason to go the same old way again."""
    groups = {"rare": {"w": torch.tensor(0.0)}, "usual": {"w": torch.tensor(7.0)}}
    other_update = Update(
        ClientInfo(5, "c5", 5, "usual"), Weights({"w": torch.tensor(8.0)}), sent=Weights(groups["usual"])
    )
    answers = [pair_of_ten(0, 4.0, fresh=False), other_update]
    moved = average_groups(ten_of_two_kinds(), groups, answers, lambda sent: sent.tensors, by="samples")
    assert moved["rare"]["w"].item() == 0.0
    assert moved["usual"]["w"].item() == pytest.approx(7.0 + 1.0 / 8)


class Gathering(method_class("fedavg")):  # type: ignore[misc]
    """FedAvg that writes down whose answers its server was given."""

    given: ClassVar[list[list[tuple[int, int, bool]]]] = []

    def server(self, state: Any, updates: Any, ctx: Any) -> Any:
        self.given.append([(update.client.index, update.staleness, update.fresh) for update in updates])
        return super().server(state, updates, ctx)


def test_a_server_that_asks_for_it_sees_the_latest_answer_of_each_other_client():
    """Three clients, one at a time; jobs take 1, 2 and 4 seconds: worked out by hand."""
    Gathering.given.clear()
    loop = make_loop(
        Gathering(), tiny(3, hidden=(5,)), rounds=2, buffer=1, concurrency=3,
        duration=lambda info, number, message: float(2**info.index),
    )  # fmt: skip
    loop.run()
    # Ends: client 0 at 1, 2, 3; client 1 at 2; client 2 at 4. Ties go to the earlier job.
    assert Gathering.given[0] == [(0, 0, True)]
    assert Gathering.given[1] == [(0, 1, False), (1, 1, True)]
    assert Gathering.given[2] == [(0, 1, True), (1, 2, False)]
    assert all(len({client for client, _, _ in step}) == len(step) for step in Gathering.given)
    assert [sum(fresh for _, _, fresh in step) for step in Gathering.given] == [1] * 6


def test_server_sees_at_most_a_cohort_of_answers():
    """Four clients one at a time, half of them a round: each answer comes with the latest other one, no more."""
    Gathering.given.clear()
    order = ((0,), (1,), (2,), (3,), (1,), (1,))
    loop = make_loop(
        Gathering(), tiny(4, hidden=(5,)), rounds=3, participation=0.5, mode="async", order=order
    )
    loop.run()
    whose = [[client for client, _, _ in step] for step in Gathering.given]
    assert whose == [[0], [0, 1], [1, 2], [2, 3], [1, 3], [1, 3]]


def test_staleness_is_counted_in_rounds():
    """Ten to a round: an answer ten steps old is one round old and weighs (1 + 1)^-1."""
    schedule = Schedule(mode="async", staleness_power=1.0, concurrency=10)
    assert schedule.staleness_weight(10, 10) == 0.5
    assert schedule.staleness_weight(0, 10) == 1.0
    assert Schedule(buffer=10, concurrency=10, staleness_power=1.0).staleness_weight(1, 10) == 0.5


def test_a_method_that_needs_whole_rounds_is_refused_with_the_reason():
    values = {"method": {"name": "fd", "target": "softmax_excl_own"}, "schedule": {"mode": "async"}}
    experiment = parse_experiment(values)
    with pytest.raises(
        PotluckError,
        match=r"schedule.mode = 'async' is not supported: FD needs synchronous rounds unless method.target = 'kl'",
    ):
        choose_settings(experiment, experiment.build_method())
