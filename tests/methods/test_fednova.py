"""FedNova: normalised averaging by hand, and FedAvg as the case of equal steps."""

from dataclasses import replace

import pytest
import torch

import potluck
from potluck.core.errors import PotluckError
from potluck.core.method import Update
from potluck.core.task import ClientInfo
from potluck.core.training import Training
from potluck.kit import ALL
from potluck.methods.fedavg import FedAvg
from potluck.methods.fednova import Direction, FedNova
from support.families import deep
from support.tiny import Recorder, make_loop, tiny


def vector(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def update(index: int, moved: float, steps: float, **statistics: float) -> Update[Direction]:
    """A client that went from 0 to `moved` in `steps` steps."""
    direction = {"w": vector(-moved / steps if steps else 0.0)}
    numbers = {name: vector(value) for name, value in statistics.items()}
    return Update(ClientInfo(index, f"c{index}", 10, "net"), Direction(direction, steps, numbers))


def served(updates: list[Update[Direction]], **old: float) -> dict[str, float]:
    state = {"net": {"w": vector(0.0), **{name: vector(value) for name, value in old.items()}}}
    context = make_loop(FedNova(), tiny(1)).server.context()
    return {name: tensor.item() for name, tensor in FedNova().server(state, updates, context)["net"].items()}


def test_a_fast_client_counts_by_its_direction():
    """τ = (1, 3), w = 0, w_k = (-1, -6), p = ½: mean direction 1.5, mean distance 2, so -3; FedAvg says -3.5."""
    assert served([update(0, -1.0, 1.0), update(1, -6.0, 3.0)]) == {"w": -3.0}


@pytest.mark.parametrize(("momentum", "steps", "expected"), [(0.9, 2, 2.9), (0.0, 7, 7.0), (0.5, 3, 4.25)])
def test_momentum_counts_a_gradient_more_than_once(momentum: float, steps: int, expected: float):
    """1 + (1 + 0.9) = 2.9; 1 + 1.5 + 1.75 = 4.25."""
    assert Training(momentum=momentum).effective_steps(steps) == pytest.approx(expected, abs=1e-12)


def test_clients_send_step_counts_corrected_for_momentum():
    """Three batches of four: 1 + 1.5 + 1.75."""
    me = tiny(1, training=Training(epochs=1, batch_size=4, momentum=0.5)).client(0)
    assert FedNova().client(me, FedAvg().broadcast(*_start(me))).steps == pytest.approx(4.25)


def test_one_of_four_updates_moves_the_state_by_a_quarter():
    """All four went from 0 to -2 in two steps; one of them just answered, the others counted before."""
    fed = tiny(4, hidden=(5,))
    context = replace(make_loop(FedNova(), fed).server.context(), cohort=4)
    answers = [
        replace(update(info.index, -2.0, 2.0), client=info, fresh=info.index == 0)
        for info in fed.task.clients
    ]
    moved = FedNova().server({"Net": {"w": vector(0.0)}}, answers, context)
    assert moved["Net"]["w"].item() == pytest.approx(-0.5)


def test_adam_counts_its_steps():
    assert Training(optimizer="adam", momentum=0.9).effective_steps(5) == 5.0


def test_equal_steps_are_fedavg():
    nova, plain = Recorder(), Recorder()
    fed = tiny(
        3, hidden=(5,), norm=True, sizes=(12, 11, 10)
    )  # three batches of four, three or two at the end
    make_loop(FedNova(), fed, rounds=3, callbacks=[nova]).run()
    make_loop(FedAvg(), fed, rounds=3, callbacks=[plain]).run()
    assert {update.payload.steps for _, update in nova.updates} == {3.0}
    for name, tensor in plain.end.state["Net"].items():
        assert torch.allclose(nova.end.state["Net"][name], tensor, rtol=1e-11, atol=1e-12), name


def test_unequal_steps_are_not_fedavg():
    nova, plain = Recorder(), Recorder()
    fed = tiny(2, hidden=(5,), sizes=(4, 40))
    make_loop(FedNova(), fed, rounds=1, callbacks=[nova]).run()
    make_loop(FedAvg(), fed, rounds=1, callbacks=[plain]).run()
    assert [update.payload.steps for _, update in nova.updates] == [1.0, 10.0]
    assert not torch.allclose(nova.end.state["Net"]["head.weight"], plain.end.state["Net"]["head.weight"])


def test_statistics_are_averaged_not_normalised():
    result = served(
        [update(0, -1.0, 1.0, running_mean=2.0), update(1, -6.0, 3.0, running_mean=6.0)], running_mean=9.0
    )
    assert result == {"w": -3.0, "running_mean": 4.0}


def test_a_client_without_steps_is_ignored():
    assert served([update(0, 0.0, 0.0), update(1, -6.0, 3.0)]) == {"w": -6.0}
    assert served([update(0, 0.0, 0.0)]) == {"w": 0.0}
    me = tiny(1, training=Training(epochs=0)).client(0)
    message = FedAvg().broadcast(*_start(me))
    assert FedNova().client(me, message).steps == 0.0


def _start(me):
    context = make_loop(FedAvg(), tiny(1)).server.context()
    return FedAvg().init_server(context), me.info, context


def test_upload_has_one_number_more_than_fedavg():
    recorder = Recorder()
    make_loop(FedNova(), tiny(1, hidden=(5,), norm=True), rounds=1, callbacks=[recorder]).run()
    down, up = recorder.sent[0][2], recorder.updates[0][1].payload
    assert (down.numel(), up.numel()) == (75, 76)
    accounted = FedNova().paper_accounting(down, up)
    assert (accounted.down, accounted.up) == (65, 66)


def test_layerwise_takes_weights_and_steps_over_the_owners():
    fed = deep((1, 1), (2, 1), sizes=(4, 12))
    recorder = Recorder()
    make_loop(FedNova(aggregate="layerwise"), fed, rounds=1, callbacks=[recorder]).run()
    (_, small), (_, large) = recorder.updates
    sent = recorder.sent[1][2].tensors
    state = recorder.end.state[ALL]
    deep_only, common = "layer1.1.fc.weight", "layer1.0.fc.weight"
    alone = sent[deep_only] - 3.0 * large.payload.direction[deep_only]
    both = 0.25 * small.payload.direction[common] + 0.75 * large.payload.direction[common]
    assert torch.allclose(state[deep_only], alone, atol=1e-14)
    assert torch.allclose(state[common], sent[common] - (0.25 * 1.0 + 0.75 * 3.0) * both, atol=1e-14)


def test_single_samples_and_rare_participation_are_survived():
    fed = tiny(4, norm=True, sizes=(1, 5, 12), classes_of=[(0,), None])
    recorder = Recorder()
    make_loop(FedNova(), fed, rounds=3, participation=0.5, callbacks=[recorder]).run()
    assert len(recorder.end.scores) == 4


def test_a_kept_momentum_cannot_be_counted_and_is_refused():
    with pytest.raises(
        PotluckError, match=r"training.keep_optimizer = true with training.momentum = 0.9 makes FedNova"
    ):
        FedNova().check_training(Training(keep_optimizer=True, momentum=0.9))
    FedNova().check_training(Training(momentum=0.9))
    FedNova().check_training(Training(keep_optimizer=True))
    with pytest.raises(PotluckError, match=r"FedNova's steps uncountable"):
        potluck.run("fednova", training={"keep_optimizer": True, "momentum": 0.9}, rounds=1, clients=2)
