"""FedMD: consensus and digest by hand, fresh public samples every round, and FedHe's count of its traffic."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from potluck.core.errors import PotluckError
from potluck.core.method import Update
from potluck.core.payload import PayloadError
from potluck.core.samples import Samples
from potluck.core.task import Context
from potluck.core.training import Training
from potluck.experiment import make_method
from potluck.methods.fedmd import Consensus, FedMD, Logits, mae
from support.tiny import Recorder, is_one_step, make_loop, points, tiny


def context(task, step: int = 1) -> Context:
    return Context(task, 1, 1, 0, step)


def two_class_task(public: int = 1):
    return replace(
        tiny(2).task, num_classes=2, public=Samples(torch.zeros(public, 4), torch.zeros(public).long())
    )


def answer(task, index: int, logits: list[list[float]], staleness: int = 0) -> Update[Logits]:
    return Update(task.clients[index], Logits(torch.tensor(logits, dtype=torch.float64)), staleness)


def test_the_consensus_is_the_plain_mean():
    task = two_class_task()
    state = FedMD().server({}, [answer(task, 0, [[0.0, 2.0]]), answer(task, 1, [[2.0, 0.0]])], context(task))
    assert state["logits"].tolist() == [[1.0, 1.0]]
    assert state["rows"].tolist() == [0]


def test_the_digest_gradient_is_the_sign_over_the_batch_and_classes():
    logits = torch.tensor([[0.0, 3.0], [1.0, -1.0]], requires_grad=True)
    consensus = torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    mae(torch.nn.Identity(), logits, consensus).backward()
    assert torch.equal(logits.grad, torch.sign(logits.detach() - consensus) / (2 * 2))


def test_logits_are_matched_to_the_requested_samples():
    """Rows of the consensus ascend, whatever order the samples were drawn in; a late answer finds its own draw."""
    task, method = two_class_task(public=5), FedMD(public_samples=2)
    fresh, old = (method.broadcast({}, task.clients[0], context(task, step)).asked for step in (4, 3))
    assert set(fresh.tolist()) != set(old.tolist())
    late = answer(task, 0, [[1.0, 0.0], [2.0, 0.0]], staleness=1)
    state = method.server({}, [answer(task, 1, [[3.0, 0.0], [4.0, 0.0]]), late], context(task, 4))
    expected: dict[int, list[float]] = {}
    for rows, values in ((fresh.tolist(), (3.0, 4.0)), (old.tolist(), (1.0, 2.0))):
        for row, value in zip(rows, values, strict=True):
            expected.setdefault(row, []).append(value)
    assert state["rows"].tolist() == sorted(expected)
    means = [sum(expected[row]) / len(expected[row]) for row in sorted(expected)]
    assert state["logits"][:, 0].tolist() == means


def test_a_wrong_number_of_answers_is_named():
    task = two_class_task(public=5)
    with pytest.raises(PayloadError, match="Logits for 1 public samples were received and 5 asked for"):
        FedMD().check_update(answer(task, 1, [[0.0, 0.0]]).payload, task.clients[1], context(task))


def test_two_rounds_against_plain_torch():
    """Round 1 trains and answers; round 2 digests the consensus of round 1, trains, and answers for new samples."""
    settings = Training(epochs=1, batch_size=0, lr=0.1)
    fed = tiny(2, smooth=True, training=settings, public=points(10, 2000))
    recorder = Recorder()
    make_loop(FedMD(public_samples=4, digest_epochs=1), fed, rounds=2, callbacks=[recorder]).run()
    questions = [next(m.asked for number, _, m in recorder.sent if number == r) for r in (1, 2)]
    models = [fed.client(index).model for index in range(2)]
    x_public, _ = fed.task.public.take(slice(None))

    def step(model, loss):
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= 0.1 * gradient

    def revisit(index):
        x, y = fed.client(index).train.take(slice(None))
        step(models[index], F.cross_entropy(models[index](x), y))

    for index in range(2):
        revisit(index)
    consensus = sum(model(x_public[questions[0]]).detach() for model in models) / 2
    for index, model in enumerate(models):
        step(model, (model(x_public[questions[0]]) - consensus).abs().mean())
        revisit(index)
    answers = [update.payload.logits for number, update in recorder.updates if number == 2]
    for model, logits in zip(models, answers, strict=True):
        assert torch.allclose(logits, model(x_public[questions[1]]), atol=1e-12)


def test_public_samples_are_redrawn_with_their_own_consensus():
    """FL-bench only appends to its list of public batches, so it digests the first round's for ever."""
    recorder = Recorder()
    make_loop(FedMD(public_samples=3), rounds=4, callbacks=[recorder]).run()
    rounds = {number: message for number, client, message in recorder.sent if client == 0}
    assert len({tuple(message.asked.tolist()) for message in rounds.values()}) == 4
    assert rounds[1].rows is None
    for number in (2, 3, 4):
        assert rounds[number].rows.tolist() == sorted(rounds[number - 1].asked.tolist())


def test_all_are_taken_where_there_are_fewer():
    recorder = Recorder()
    make_loop(FedMD(), rounds=1, callbacks=[recorder]).run()
    assert sorted(recorder.sent[0][2].asked.tolist()) == list(range(10))


@pytest.mark.parametrize(("shape", "each"), [((1, 28, 28), 794), ((3, 32, 32), 3082)])
def test_fedhe_counts_image_and_logits_of_each_sample(shape: tuple[int, ...], each: int):
    """FedHe's tables: n·794 for MNIST and n·3082 for CIFAR, here with n = 10."""
    public = Samples(torch.zeros(12, *shape), torch.zeros(12).long())
    task = replace(tiny(1).task, num_classes=10, public=public)
    method = FedMD(public_samples=10, send_images=True)
    down = method.broadcast({}, task.clients[0], context(task))
    up = Logits(torch.zeros(10, 10))
    accounted = method.paper_accounting(down, up)
    assert (accounted.up, accounted.down) == (10 * each, 0)
    assert down.numel() == 10 + 10 * (each - 10)  # row numbers and images; no consensus yet


def test_numbers_that_travel():
    """Up A·C; down A·C and the row numbers of both samples."""
    recorder = Recorder()
    make_loop(FedMD(public_samples=4), rounds=2, callbacks=[recorder]).run()
    first, second = (step.record for step in recorder.steps)
    assert first.floats_up == second.floats_up == 4 * (4 * 3)
    assert first.floats_down == 4 * 4
    assert second.floats_down == 4 * (4 * 3 + 4 + 4)
    down, up = recorder.sent[-1][2], recorder.updates[-1][1].payload
    accounted = FedMD().paper_accounting(down, up)
    assert (accounted.up, accounted.down) == (12, 12)
    first_up, first_down = recorder.updates[0][1].payload, recorder.sent[0][2]
    assert FedMD().paper_accounting(first_down, first_up).down == 0  # no consensus yet


def test_shipped_images_give_the_same_answers():
    runs = []
    for ship in (False, True):
        recorder = Recorder()
        make_loop(FedMD(public_samples=4, send_images=ship), rounds=2, callbacks=[recorder]).run()
        runs.append([update.payload.logits for _, update in recorder.updates])
    assert all(torch.equal(by_index, by_image) for by_index, by_image in zip(*runs, strict=True))


def test_pretraining_happens_once_before_the_first_round():
    fed = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.1))
    plain, ahead = fed.client(0), fed.client(0)
    message = Consensus(torch.arange(10), None, None, None)
    FedMD().client(plain, message)
    method = FedMD(pretrain_epochs=3)
    method.client(ahead, message)
    assert not torch.equal(plain.model.head.weight, ahead.model.head.weight)
    x, y = fed.task.public.take(slice(None))
    assert ahead.trained_samples == 3 * 10 + 12
    ahead.begin("train", 1, 2, 2)
    method.client(ahead, message)
    assert ahead.trained_samples == 12
    assert F.cross_entropy(ahead.model(x), y) < F.cross_entropy(plain.model(x), y)


def test_the_squared_digest_and_its_own_batch_size():
    """Two batches of two per digest epoch, whatever the batch size of private training."""
    fed = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.1))
    me = fed.client(0)
    sizes = []
    fit = me.fit
    me.fit = lambda *args, **options: sizes.append(fit(*args, **options).steps)
    message = Consensus(torch.arange(4), torch.arange(4), torch.ones(4, 3, dtype=torch.float64), None)
    FedMD(digest_loss="mse", digest_batch=2, digest_epochs=3).client(me, message)
    assert sizes == [6, 1]


def test_the_squared_digest_is_a_step_on_the_mean_square():
    fed = tiny(1, smooth=True, training=Training(epochs=0, batch_size=0, lr=0.1))
    me, net = fed.client(0), fed.client(0).model
    x, target = fed.task.public.take(slice(0, 4))[0], torch.ones(4, 3, dtype=torch.float64)
    FedMD(digest_loss="mse", digest_epochs=1).client(
        me, Consensus(torch.arange(4), torch.arange(4), target, None)
    )
    assert is_one_step(net, (net(x) - target).square().mean(), me.model)


def test_logits_are_computed_for_shipped_images():
    me = tiny(1, training=Training(epochs=0)).client(0)
    images = torch.full((2, 4), 7.0, dtype=torch.float64)
    logits = FedMD().client(me, Consensus(torch.arange(2), None, None, images)).logits
    assert torch.equal(logits, me.model(images))


def test_the_recorded_distance_is_a_mean_over_samples_and_classes():
    fed = tiny(1, training=Training(epochs=0, batch_size=0))
    me, target = fed.client(0), torch.full((10, 3), 2.0, dtype=torch.float64)
    me.begin("train", 0, 1, 1)
    before = (me.model(fed.task.public.take(slice(None))[0]) - target).abs().mean().item()
    FedMD().client(me, Consensus(torch.arange(2), torch.arange(10), target, None))
    assert me.notes["digest_before"] == pytest.approx(before)


def test_public_samples_must_be_asked_for():
    with pytest.raises(PotluckError, match=r"public_samples = 0 is not valid"):
        make_method(FedMD, {"public_samples": 0})
    with pytest.raises(PotluckError, match="FedMD needs public data"):
        make_loop(FedMD(), tiny(public=None))


def test_digesting_is_on_record_and_brings_a_client_nearer_to_the_consensus():
    recorder = Recorder()
    make_loop(FedMD(public_samples=8), tiny(3, smooth=True), rounds=3, callbacks=[recorder]).run()
    assert "digest_before" not in recorder.steps[0].record.notes  # nothing to digest yet
    for step in recorder.steps[1:]:
        assert step.record.notes["digest_after"] < step.record.notes["digest_before"]


def test_digesting_takes_batches_of_the_experiments_size():
    """179 public rows in one batch of 256 would be a single step."""
    fed = tiny(1, training=Training(epochs=1, batch_size=4, lr=0.1))
    me = fed.client(0)
    consensus = Consensus(torch.arange(2), torch.arange(10), torch.zeros(10, 3).double(), None)
    me.begin("train", 0, 1, 1)
    FedMD(digest_epochs=2).client(me, consensus)
    assert me.trained_samples == 2 * 10 + len(me.train)
