"""MOON: the contrast by hand, and FedAvg as its special case."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from potluck.core.model import tensors_of
from potluck.core.needs import Need
from potluck.core.training import Training
from potluck.kit import Weights
from potluck.methods.fedavg import FedAvg
from potluck.methods.moon import Moon, contrast
from potluck.models import build_model
from support.tiny import Recorder, answer, is_one_step, make_loop, tiny


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def run(method, **settings):
    recorder = Recorder()
    fed = tiny(3, hidden=(5,), norm=True, sizes=(12, 9))
    loop = make_loop(method, fed, callbacks=[recorder], rounds=3, **settings)
    loop.run()
    return recorder, loop


def same(state: dict, expected: dict) -> bool:
    return state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in state)


def test_contrast_by_hand():
    """z = z_g = (1, 0), z_p = (0, 1), τ = ½: log(1 + e⁻²) = 0.126928."""
    value = contrast(rows(1, 0), rows(1, 0), rows(0, 1), 0.5)
    assert value.item() == pytest.approx(0.126928, abs=1e-6)


def test_equal_teachers_give_log_two_and_no_gradient():
    z = rows(1.0, 2.0).requires_grad_()
    value = contrast(z, rows(3.0, -1.0), rows(3.0, -1.0), 0.5)
    value.backward()
    assert value.item() == pytest.approx(math.log(2), abs=1e-15)
    assert z.grad.abs().max() < 1e-15


def test_the_gradient_leads_to_the_received_features():
    z = rows(1.0, 1.0).requires_grad_()
    contrast(z, rows(1.0, 0.0), rows(0.0, 1.0), 0.5).backward()
    assert z.grad[0, 0] < 0 < z.grad[0, 1]


def test_dead_features_do_not_spoil_the_gradient():
    z = rows(0.0, 0.0).requires_grad_()
    contrast(z, rows(0.0, 0.0), rows(0.0, 1.0), 0.5).backward()
    assert torch.isfinite(z.grad).all()


def test_without_weight_it_is_fedavg_bit_for_bit():
    plain, moon = run(FedAvg())[0], run(Moon(mu=0.0))[0]
    assert same(plain.end.state["Net"], moon.end.state["Net"])
    assert not same(plain.end.state["Net"], run(Moon(mu=1.0))[0].end.state["Net"])


def test_the_first_participation_is_plain_training():
    """There is no earlier model; nothing takes its place."""
    moon, plain = Recorder(), Recorder()
    make_loop(Moon(mu=5.0), tiny(2), rounds=1, callbacks=[moon]).run()
    make_loop(FedAvg(), tiny(2), rounds=1, callbacks=[plain]).run()
    for (_, update), (_, plain_update) in zip(moon.updates, plain.updates, strict=True):
        assert same(update.payload.tensors, plain_update.payload.tensors)


def test_the_contrast_is_added_with_its_weight():
    """The second job is one gradient step on CE + μ·contrast with the received and the client's last features."""
    fed = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.1))
    me, net, received = fed.client(0), fed.client(0).model, fed.client(0).model
    start = Weights({name: tensor.clone() for name, tensor in net.state_dict().items()})
    previous = answer(Moon(mu=2.0), me, start).tensors
    last = fed.client(0).model
    last.load_state_dict(previous)
    x, y = me.train.take(slice(None))
    z, z_g, z_p = net.features(x), received.features(x).detach(), last.features(x).detach()
    near, far = (cosine_similarity(z, target, dim=1).div(0.5).exp() for target in (z_g, z_p))
    loss = cross_entropy(net.head(z), y) + 2.0 * -(near / (near + far)).log().mean()
    answer(Moon(mu=2.0), me, start, number=2, rounds=2)
    assert is_one_step(net, loss, me.model)


def test_the_previous_model_is_the_clients_last_and_waits_for_it():
    recorder, loop = run(Moon(), participation=0.34)
    last: dict[int, dict] = {}
    for _, update in recorder.updates:
        last[update.client.index] = update.payload.tensors
    assert last
    for index in range(3):
        private = loop.fetch(index)["private"]
        if index in last:
            assert same(private["previous"], last[index])
        else:
            assert private == {}


def test_frozen_models_keep_their_statistics():
    fed = tiny(1, hidden=(5,), norm=True)
    me = fed.client(0)
    method = Moon()
    weights = Weights({n: t.clone() for n, t in me.model.state_dict().items() if "tracked" not in n})
    me.begin("train", 0, 1, 2)
    method.client(me, weights)
    previous = {name: tensor.clone() for name, tensor in me.private["previous"].items()}
    me.begin("train", 1, 2, 2)
    answer = method.client(me, weights)
    assert not same(previous, answer.tensors)
    assert weights.tensors["body.1.running_mean"].eq(0).all()  # training did not reach into the message


def test_upload_equals_that_of_fedavg():
    moon, plain = run(Moon())[0], run(FedAvg())[0]
    assert [m.numel() for _, _, m in moon.sent] == [m.numel() for _, _, m in plain.sent]
    assert [u.payload.numel() for _, u in moon.updates] == [u.payload.numel() for _, u in plain.updates]


def test_the_authors_projection_head_is_part_of_the_model():
    """Linear(64, 64) and Linear(64, 32) before a head that reads 32: 4160 + 2080 + 330 numbers in place of 650."""
    sizes = []
    for projected in ({}, {"feature_dim": 32, "projection": "mlp"}):
        model = build_model("small-mlp", (1, 2, 2), 10, **projected)
        sizes.append(Weights(tensors_of(model)).numel())
    assert sizes[1] - sizes[0] == 4160 + 2080 + 330 - 650


def test_single_samples_and_single_classes_are_survived():
    fed = tiny(4, hidden=(5, 7), norm=True, sizes=(1, 12, 5), classes_of=[(0,), None])
    recorder = Recorder()
    make_loop(Moon(), fed, rounds=3, participation=0.5, callbacks=[recorder]).run()
    assert len(recorder.end.scores) == 4


def test_it_needs_features_and_what_its_way_of_sharing_needs():
    for aggregate in ("full", "same_arch", "layerwise"):
        assert Moon(aggregate=aggregate).requires() == FedAvg(aggregate=aggregate).requires() | {
            Need.FEATURES
        }
