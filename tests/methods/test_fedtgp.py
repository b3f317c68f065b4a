"""FedTGP: the margin, the server's training, and prototypes of the trained model."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from potluck.core.training import Training
from potluck.kit import ClassMeans, mean_by_class, sgd_step
from potluck.methods.fedtgp import FedTGP, GlobalPrototypes, class_margin, margin_loss
from potluck.methods.standalone import Standalone
from support.tiny import Recorder, answer, context, is_one_step, make_loop, same, tiny, update, weights

FEW = {"server_epochs": 5}
NONE = GlobalPrototypes(None)


def means(rows: list[list[float]], labels: list[int]) -> ClassMeans:
    return ClassMeans(torch.tensor(rows, dtype=torch.float64), torch.tensor(labels))


def test_the_margin_is_added_to_the_distance_of_the_right_class():
    prototypes = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    loss = margin_loss(torch.zeros(1, 2), prototypes, torch.tensor([0]), 2.0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(6)))
    assert loss.item() == pytest.approx(6.002476, abs=1e-6)


def test_margin_keeps_the_precision_of_the_distances():
    """Scores −(5 + 0.1) and −1: log(1 + e^4.1); 0.1 rounded to single precision would be off by 1.5e-9."""
    prototypes = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    loss = margin_loss(torch.zeros(1, 2, dtype=torch.float64), prototypes, torch.tensor([0]), 0.1)
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(math.log1p(math.exp(4.1)), abs=1e-14)


def test_equal_distances_without_margin_leave_a_coin_toss():
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    loss = margin_loss(torch.zeros(1, 2), prototypes, torch.tensor([1]), 0.0)
    assert loss.item() == pytest.approx(math.log(2))


def test_the_adaptive_margin_is_the_largest_nearest_neighbour_distance():
    pair = mean_by_class([(torch.tensor([[0.0], [3.0]]), torch.tensor([0, 1]))], 3)
    assert class_margin(*pair) == 3.0  # class 2, which nobody sent, changes nothing
    three = mean_by_class([(torch.tensor([[0.0], [3.0], [10.0]]), torch.tensor([0, 1, 2]))], 3)
    assert class_margin(*three) == 7.0
    two_senders = mean_by_class(
        [
            (torch.tensor([[0.0], [3.0]]), torch.tensor([0, 1])),
            (torch.tensor([[5.0]]), torch.tensor([1])),
        ],
        3,
    )
    assert class_margin(*two_senders) == 4.0


def test_adaptive_margin_of_many_tight_classes_is_exact_in_single_precision():
    """Forty classes 1/16 apart, far from the origin; a distance from inner products would lose it (1024² ≫ 2⁻⁸)."""
    rows = torch.full((40, 2), 1024.0)
    rows[:, 0] += torch.arange(40) / 16
    assert class_margin(rows, torch.ones(40, dtype=torch.int64)) == 1 / 16


def test_margins_by_option():
    rows, labels = torch.tensor([[0.0], [300.0]]), torch.tensor([0, 1])
    assert FedTGP()._margin(rows, labels, 3) == 100.0  # capped at τ
    assert FedTGP(threshold=500)._margin(rows, labels, 3) == 300.0
    assert FedTGP(margin="none")._margin(rows, labels, 3) == 0.0
    assert FedTGP(margin="fixed", threshold=7)._margin(rows, labels, 3) == 7.0
    assert FedTGP()._margin(rows[:1], labels[:1], 3) == 0.0  # one class only


def test_a_mean_that_sits_on_a_prototype_has_a_finite_gradient():
    prototypes = torch.zeros(2, 2, requires_grad=True)
    loss = margin_loss(torch.zeros(1, 2), prototypes, torch.tensor([0]), 1.0)
    assert torch.isfinite(torch.autograd.grad(loss, prototypes)[0]).all()


def test_prototypes_are_those_of_the_trained_model():
    """In published code they come from the model as it was before training."""
    me = tiny(1, seed=1).client(0)
    x, y = me.train.take(slice(None))
    before = me.model.features(x[y == 0]).mean(0)
    sent = answer(FedTGP(), me, NONE)
    assert torch.allclose(sent.means[0], me.model.features(x[y == 0]).mean(0))
    assert not torch.allclose(sent.means[0], before)


def test_the_first_round_is_local_training_and_costs_nothing_to_send():
    fed = tiny(1)
    alone, me = fed.client(0), fed.client(0)
    method, ctx = FedTGP(), context(fed)
    message = method.broadcast(method.init_server(ctx), me.info, ctx)
    assert message.numel() == 0
    answer(Standalone(), alone, None)
    answer(method, me, message)
    assert same(weights(alone), weights(me))


def test_the_server_brings_prototypes_to_their_means():
    method, ctx = FedTGP(server_lr=0.05), context()
    rows, labels = [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0]], [0, 1]
    state = method.init_server(ctx)
    payload = means(rows, labels)
    first = margin_loss(payload.means, state.module(), payload.labels, 4.0).mean().item()
    state = method.server(state, [update(payload)], ctx)
    assert margin_loss(payload.means, state.module(), payload.labels, 4.0).mean().item() < first / 2
    message = method.broadcast(state, update(None).client, ctx)
    assert message.prototypes.shape == (3, 3)  # class 2, never seen, has one too


@pytest.mark.parametrize(("server_lr", "rate"), [(None, 0.1), (0.3, 0.3)])
def test_a_server_step_by_hand(server_lr: float | None, rate: float):
    """One batch of all means: a step at the clients' rate unless told, on cross-entropy across the margin of 5."""
    method, ctx = FedTGP(server_epochs=1, server_lr=server_lr), context()
    payload = means([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]], [0, 1])
    state = method.init_server(ctx)
    before = copy.deepcopy(state.module)
    away = torch.stack([(row - before()).norm(dim=1) for row in payload.means])
    scores = -(away + 5.0 * torch.eye(3, dtype=torch.float64)[:2])
    after = method.server(state, [update(payload)], ctx).module
    assert is_one_step(before, cross_entropy(scores, payload.labels), after, rate)


def test_a_stale_mean_counts_by_its_weight():
    method, ctx = FedTGP(server_epochs=1, server_lr=0.3, margin="none"), context()
    payload = means([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]], [0, 1])
    state = method.init_server(ctx)
    before = copy.deepcopy(state.module)
    loss = margin_loss(payload.means, before(), payload.labels, 0.0)
    after = method.server(state, [replace(update(payload), weight=0.5)], ctx).module
    assert is_one_step(before, 0.5 * loss.mean(), after, 0.3)


def test_every_pass_takes_its_batches_in_an_order_of_its_own():
    method, ctx = FedTGP(server_epochs=3, server_batch=2, server_lr=0.3, margin="none"), context()
    payload = means([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 5.0], [6.0, 0.0, 0.0]], [0, 1, 2, 0])
    state = method.init_server(ctx)
    module = copy.deepcopy(state.module)
    orders = [torch.randperm(4, generator=ctx.rng(f"epoch {number}")) for number in range(3)]
    assert len({tuple(order.tolist()) for order in orders}) == 3
    for rows in (rows for order in orders for rows in (order[:2], order[2:])):
        loss = margin_loss(payload.means[rows], module(), payload.labels[rows], 0.0).mean()
        sgd_step(module, loss, 0.3)
    after = method.server(state, [update(payload)], ctx).module
    assert torch.allclose(after(), module(), atol=1e-12)


def test_one_of_four_updates_makes_a_quarter_of_the_passes():
    ctx, payload = context(), means([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]], [0, 1])
    part = FedTGP(server_epochs=8).server(
        FedTGP().init_server(ctx), [update(payload)], replace(ctx, cohort=4)
    )
    state = FedTGP(server_epochs=2).server(FedTGP().init_server(ctx), [update(payload)], ctx)
    assert torch.equal(part.module(), state.module())


def test_a_client_trains_on_the_weighted_distance():
    fed = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.1))
    me, net = fed.client(0), fed.client(0).model
    x, y = me.train.take(slice(None))
    z, rows = net.features(x), torch.arange(9.0, dtype=torch.float64).reshape(3, 3)
    answer(FedTGP(prototype_weight=3.0), me, GlobalPrototypes(rows))
    assert is_one_step(net, cross_entropy(net.head(z), y) + 3.0 * (z - rows[y]).square().mean(), me.model)


def test_training_is_drawn_to_the_prototypes():
    fed = tiny(1, seed=1)
    free, drawn = fed.client(0), fed.client(0)
    target = torch.full((3, 3), 2.0, dtype=torch.float64)
    answer(FedTGP(prototype_weight=0.0), free, GlobalPrototypes(target))
    answer(FedTGP(prototype_weight=1.0), drawn, GlobalPrototypes(target))
    x, _ = free.train.take(slice(None))
    assert (drawn.model.features(x) - 2).square().mean() < (free.model.features(x) - 2).square().mean()


def test_prediction_is_the_nearest_prototype_or_the_head():
    me = tiny(1, seed=1).client(0)
    x, _ = me.train.take(slice(None))
    centre = me.model.features(x).mean(0).detach()
    message = GlobalPrototypes(torch.stack([centre + 9, centre + 9, centre]))
    before = weights(me)
    nearest_prototype = FedTGP(prediction="proto_all")
    assert (nearest_prototype.predict(me, message)(x).argmax(1) == 2).all()
    assert torch.equal(FedTGP().predict(me, message)(x), me.model(x))
    assert torch.equal(nearest_prototype.predict(me, None)(x), me.model(x))  # none received yet
    assert same(before, weights(me))
    answer(nearest_prototype, me, message)
    assert nearest_prototype.predict(me, None)(x).shape == (12, 3)
    assert not torch.equal(nearest_prototype.predict(me, None)(x), me.model(x))


def test_numbers_that_travel():
    recorder = Recorder()
    make_loop(FedTGP(**FEW), tiny(2, classes_of=[(0,), (0, 2)]), rounds=2, callbacks=[recorder]).run()
    assert [update.payload.numel() for _, update in recorder.updates[:2]] == [1 * 3 + 1, 2 * 3 + 2]
    assert [message.numel() for number, _, message in recorder.sent if number == 2] == [9, 9]


def test_partial_participation_and_single_samples():
    fed = tiny(4, classes_of=[(0,), (1, 2), None], norm=True, sizes=(12, 1, 7))
    recorder = Recorder()
    make_loop(FedTGP(**FEW), fed, rounds=4, participation=0.25, callbacks=[recorder]).run()
    assert all(step.record.accuracy is not None for step in recorder.steps)
    assert all(torch.isfinite(parameter).all() for parameter in recorder.end.state.module.parameters())
