"""FD: class-mean outputs, their exclusion, and the targets that published code differs in."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from potluck.core.training import Training
from potluck.kit import ClassLogits, ClassVectors
from potluck.methods.fd import FD, pull_to
from potluck.methods.standalone import Standalone
from support.tiny import Recorder, answer, context, is_one_step, make_loop, same, tiny, update, weights


def outputs(rows: list[list[float]], labels: list[int]) -> ClassLogits:
    return ClassLogits(torch.tensor(rows, dtype=torch.float64).reshape(-1, 3), torch.tensor(labels).long())


def client(index: int) -> object:
    return update(None, index).client


def three_clients(method: FD) -> object:
    ctx = context()
    rows = [[0.8, 0.2, 0.0], [0.6, 0.4, 0.0], [0.4, 0.6, 0.0]]
    updates = [update(outputs([row], [0]), index) for index, row in enumerate(rows)]
    return method.server(method.init_server(ctx), updates, ctx)


def test_own_contribution_is_left_out_only_where_the_target_says_so():
    state = three_clients(FD(target="softmax_excl_own"))
    message = FD(target="softmax_excl_own").broadcast(state, client(0), context())
    assert message.rows[0].tolist() == pytest.approx([0.5, 0.5, 0.0])
    stranger = FD(target="softmax_excl_own").broadcast(state, client(7), context())
    assert stranger.rows[0].tolist() == pytest.approx([0.6, 0.4, 0.0])
    message = FD().broadcast(three_clients(FD()), client(0), context())
    assert message.rows[0].tolist() == pytest.approx([0.6, 0.4, 0.0])


def test_the_only_holder_of_a_class_gets_no_target_for_it():
    method, ctx = FD(target="softmax_excl_own"), context()
    updates = [update(outputs([[1, 0, 0], [0, 1, 0]], [0, 1]), 0), update(outputs([[0, 0, 1]], [1]), 1)]
    state = method.server(method.init_server(ctx), updates, ctx)
    message = method.broadcast(state, client(0), ctx)
    assert message.labels.tolist() == [1]
    assert message.rows.tolist() == [[0, 0, 1]]


def test_an_old_contribution_goes_with_the_mean_it_was_in():
    method, ctx = FD(target="softmax_excl_own"), context()
    state = three_clients(method)
    state = method.server(state, [update(outputs([[0, 0, 1], [0, 1, 0]], [0, 1]), 1)], ctx)
    message = method.broadcast(state, client(0), ctx)  # client 0 has no part in the new mean of class 0
    assert message.labels.tolist() == [0, 1]
    assert message.rows.tolist() == [[0, 0, 1], [0, 1, 0]]
    assert method.broadcast(state, client(1), ctx).rows.numel() == 0


def test_a_class_of_earlier_rounds_still_lacks_the_own_contribution():
    """Class 0 is of round 1 alone: its mean (0.6, 0.4) of three without (0.8, 0.2) is (0.5, 0.5) of two."""
    method, ctx = FD(target="softmax_excl_own"), context()
    state = method.server(three_clients(method), [update(outputs([[0, 1, 0]], [1]), 1)], ctx)
    message = method.broadcast(state, client(0), ctx)
    assert message.labels.tolist() == [0, 1]
    assert message.rows[0].tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_raw_logits_as_targets_have_no_lower_bound_and_are_not_the_default():
    """A peer's code trains so; here it is a named option, and the default term is never negative."""
    scores, target = torch.zeros(1, 2), torch.tensor([[-3.0, 1.0]])
    assert pull_to("raw_ce", scores, target).item() == pytest.approx(-1.386294, abs=1e-6)
    assert FD().target == "kl"
    assert pull_to("kl", scores, target).item() > 0
    assert pull_to("mse", scores, target).item() == pytest.approx(5.0)


def test_kl_is_zero_up_to_a_shift_of_the_logits():
    mean = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    scores = (mean + 7.0).requires_grad_()
    value = pull_to("kl", scores, mean).sum()
    assert value.item() == pytest.approx(0.0, abs=1e-12)
    assert torch.autograd.grad(value, scores)[0].abs().max() < 1e-12


def test_kl_by_hand():
    """σ(ln 3, 0) = (¾, ¼) against (½, ½): ¾·ln(3/2) + ¼·ln(1/2) = 0.130812, a sum over classes."""
    mean = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
    value = pull_to("kl", torch.zeros(1, 2, dtype=torch.float64), mean)
    assert value.tolist() == pytest.approx([0.130812], abs=1e-6)


def test_one_full_batch_against_plain_torch():
    """The pull is a mean over the batch, times its weight."""
    fed = tiny(1, training=Training(epochs=1, batch_size=0, lr=0.1))
    me, net = fed.client(0), fed.client(0).model
    x, y = me.train.take(slice(None))
    means = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [-1.0, 0.0, 1.0]], dtype=torch.float64)
    scores, target = net(x), means[y].softmax(dim=1)
    pulls = (target * (target.log() - scores.log_softmax(dim=1))).sum(dim=1)
    loss = cross_entropy(scores, y) + 3.0 * pulls.sum() / len(y)
    answer(FD(distillation_weight=3.0), me, ClassVectors(means))
    assert is_one_step(net, loss, me.model)


@pytest.mark.parametrize("target", ["kl", "softmax_excl_own", "raw_ce", "mse"])
def test_without_means_the_first_round_is_local_training(target: str):
    fed = tiny(1)
    alone, distilled = fed.client(0), fed.client(0)
    answer(Standalone(), alone, None)
    answer(FD(target=target), distilled, ClassVectors(torch.zeros(0, 3).double(), torch.zeros(0).long()))
    assert same(weights(alone), weights(distilled))


def test_a_class_without_mean_gets_no_term_and_a_known_one_does():
    fed = tiny(1, training=Training(epochs=1, batch_size=0, lr=0.1))
    plain, blind, informed = (fed.client(0) for _ in range(3))
    row = torch.tensor([[5.0, -5.0, 0.0]], dtype=torch.float64)
    answer(Standalone(), plain, None)
    only = fed.client(0).train.labels == 0
    for me in (blind, informed):
        me.train = me.train.select(torch.nonzero(only).flatten())
    answer(FD(), blind, ClassVectors(row, torch.tensor([1])))
    answer(FD(), informed, ClassVectors(row, torch.tensor([0])))
    alone = fed.client(0)
    alone.train = blind.train
    answer(Standalone(), alone, None)
    assert same(weights(alone), weights(blind))
    assert not same(weights(alone), weights(informed))


def test_means_are_of_the_training_passes():
    """One full batch: what is sent is the class mean of the outputs before the step."""
    me = tiny(1, training=Training(epochs=1, batch_size=0, lr=0.1)).client(0)
    x, y = me.train.take(slice(None))
    scores = me.model(x).detach()
    empty = ClassVectors(torch.zeros(0, 3).double(), torch.zeros(0).long())
    sent = answer(FD(), me, empty)
    assert torch.allclose(sent.rows[1], scores[y == 1].mean(0))
    me = tiny(1, training=Training(epochs=1, batch_size=0, lr=0.1)).client(0)
    sent = answer(FD(target="softmax_excl_own"), me, empty)
    assert torch.allclose(sent.rows[1], scores[y == 1].softmax(1).mean(0))


@pytest.mark.parametrize(("keep_old", "known_classes"), [(True, [0, 1]), (False, [1])])
def test_class_without_sender(keep_old: bool, known_classes: list[int]):
    method, ctx = FD(keep_old=keep_old), context()
    state = method.server(method.init_server(ctx), [update(outputs([[1, 0, 0], [0, 1, 0]], [0, 1]))], ctx)
    state = method.server(state, [update(outputs([[0, 0, 9]], [1]))], ctx)
    message = method.broadcast(state, client(0), ctx)
    assert message.labels.tolist() == known_classes
    assert message.rows[-1].tolist() == [0, 0, 9]


def test_numbers_that_travel():
    """0.16 KiB in FedGH's Table 3 (own classes both ways), 0.763 MiB down for 20 clients in FedL2G's."""
    up = ClassLogits(torch.zeros(2, 10), torch.arange(2))
    down = ClassVectors(torch.zeros(10, 10))
    assert (up.numel(), down.numel()) == (2 * 10 + 2, 10 * 10)
    accounted = FD().paper_accounting(down, up)
    assert accounted.up + accounted.down == 40
    assert pytest.approx(0.156, abs=5e-4) == 4 * 40 / 1024
    assert round(20 * 4 * ClassVectors(torch.zeros(100, 100)).numel() / 2**20, 3) == 0.763


@pytest.mark.parametrize("target", ["kl", "softmax_excl_own", "mse"])
def test_partial_participation_missing_classes_and_single_samples(target: str):
    fed = tiny(4, classes_of=[(0,), (1, 2), None], norm=True, sizes=(12, 1, 7))
    recorder = Recorder()
    make_loop(FD(target=target), fed, rounds=4, participation=0.5, callbacks=[recorder]).run()
    assert recorder.sent[0][2].numel() == 0
    assert any(message.numel() > 0 for _, _, message in recorder.sent)
    assert all(step.record.accuracy is not None for step in recorder.steps)
