"""FML: its losses by hand, its gradients against plain torch, and what travels."""

from dataclasses import replace
from math import log

import pytest
import torch
from torch.nn import functional as F

from potluck.core.task import Context
from potluck.core.training import Training
from potluck.kit import SharedWeights, distillation
from potluck.methods.fml import FML
from potluck.models import build_model
from support.tiny import Recorder, make_loop, seeded_net, tiny

PRIVATE = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
MEME = torch.tensor([[log(3), 0.0]], dtype=torch.float64)
LABEL = torch.tensor([0])


def test_losses_by_hand():
    """KL((¾,¼) ‖ (½,½)) = 0.130812 and the other way 0.143841."""
    private_loss, meme_loss = FML().losses(PRIVATE, MEME, LABEL)
    assert distillation(MEME, PRIVATE).item() == pytest.approx(0.130812, abs=1e-6)
    assert distillation(PRIVATE, MEME).item() == pytest.approx(0.143841, abs=1e-6)
    assert private_loss.item() == pytest.approx(0.411980, abs=1e-6)
    assert meme_loss.item() == pytest.approx(0.215762, abs=1e-6)


def test_htfllib_divides_the_imitation_by_the_classes():
    private_loss, meme_loss = FML(alpha=0, beta=0, htfllib_compat=True).losses(PRIVATE, MEME, LABEL)
    assert private_loss.item() == pytest.approx(0.130812 / 2, abs=1e-6)
    assert meme_loss.item() == pytest.approx(0.143841 / 2, abs=1e-6)


@pytest.mark.parametrize("compat", [False, True])
def test_a_loss_trains_its_own_model_only(compat: bool):
    """HtFLlib's targets are not detached: there the private loss moves the meme as well."""
    private, meme = PRIVATE.clone().requires_grad_(), MEME.clone().requires_grad_()
    private_loss, _ = FML(htfllib_compat=compat).losses(private, meme, LABEL)
    own, other_gradient = torch.autograd.grad(private_loss, [private, meme], allow_unused=True)
    assert own.abs().sum() > 0
    assert (other_gradient is not None and other_gradient.abs().sum() > 0) == compat


@pytest.mark.parametrize("compat", [False, True])
def test_one_round_against_two_backward_passes(compat: bool):
    """Both losses in one backward give what two backward passes and two optimisers give, clipping included."""
    fed = tiny(1, smooth=True, training=Training(epochs=2, batch_size=0, lr=0.1, clip_norm=0.05))
    method = FML(alpha=0.3, beta=0.6, htfllib_compat=compat)
    recorder = Recorder()
    loop = make_loop(method, fed, rounds=1, callbacks=[recorder])
    loop.run()
    me, meme = fed.client(0), fed.task.shared_model()
    x, y = me.train.take(slice(None))
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (me.model, meme)]
    for _ in range(2):
        private, common = me.model(x), meme(x)
        targets = (common, private) if compat else (common.detach(), private.detach())
        divisor = 3 if compat else 1
        losses = (
            share * F.cross_entropy(out, y)
            + (1 - share) * F.kl_div(out.log_softmax(1), target.softmax(1), reduction="batchmean") / divisor
            for share, out, target in zip((0.3, 0.6), (private, common), targets, strict=True)
        )
        for optimizer in optimizers:
            optimizer.zero_grad()
        for loss in losses:
            loss.backward(retain_graph=True)
        for model, optimizer in zip((me.model, meme), optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
    upload = recorder.updates[0][1].payload.tensors
    assert all(torch.allclose(upload[name], tensor, atol=1e-12) for name, tensor in meme.state_dict().items())
    trained = loop.fetch(0)["model"]
    assert all(
        torch.allclose(trained[name], tensor, atol=1e-12) for name, tensor in me.model.state_dict().items()
    )


def test_alpha_one_is_training_alone():
    """Without the imitation terms the private model does not feel the meme."""
    alone, beside = Recorder(), Recorder()
    make_loop(FML(alpha=1.0, beta=0.5), rounds=2, callbacks=[beside]).run()
    make_loop(FML(alpha=1.0, beta=0.1), rounds=2, callbacks=[alone]).run()
    losses = [[score.score.loss_sum for score in recorder.end.scores] for recorder in (alone, beside)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("weight", "expected"), [("samples", 3.0), ("uniform", 2.0)])
def test_the_mean_of_the_memes(weight: str, expected: float):
    fed = tiny(2, sizes=(4, 12))
    updates = [
        replace(update, payload=SharedWeights({"head.bias": torch.full((3,), value, dtype=torch.float64)}))
        for update, value in zip(_updates(fed), (0.0, 4.0), strict=True)
    ]
    method = FML(weight=weight)
    state = method.server(method.init_server(_context(fed)), updates, _context(fed))
    assert state["head.bias"].tolist() == [expected] * 3


def _context(fed):
    return Context(fed.task, 1, 1, 0, 1)


def _updates(fed):
    recorder = Recorder()
    make_loop(FML(), fed, rounds=1, callbacks=[recorder]).run()
    return [update for _, update in recorder.updates]


@pytest.mark.parametrize(("classes", "numbers"), [(10, 670_058), (100, 715_148)])
def test_numbers_that_travel(classes: int, numbers: int):
    """CNN-5 as the meme, each way."""
    task = replace(tiny(1).task, shared_builder=lambda: build_model("cnn-5", (3, 32, 32), classes))
    context = Context(task, 1, 1, 0, 1)
    method = FML()
    assert method.broadcast(method.init_server(context), task.clients[0], context).numel() == numbers


def test_twenty_memes_of_fedl2gs_table():
    """FedL2G's Table 3: a four-layer CNN with 100 classes, 20 clients, 70.55 MiB each way (printed 70.57)."""
    task = replace(tiny(1).task, shared_builder=lambda: build_model("fedavg-cnn-4", (3, 32, 32), 100))
    numbers = SharedWeights(FML().init_server(Context(task, 1, 1, 0, 1))).numel()
    assert numbers == 924_708
    assert round(20 * 4 * numbers / 2**20, 2) == 70.55


def test_up_and_down_are_counted_from_the_messages():
    recorder = Recorder()
    make_loop(FML(), rounds=1, callbacks=[recorder]).run()
    record = recorder.steps[0].record
    assert record.floats_up == record.floats_down == 4 * (4 * 2 + 2 + 2 * 3 + 3 + 3 * 3 + 3)


def test_the_meme_can_be_tested_as_trained_and_as_received():
    fed = tiny(1, smooth=True)
    me, method = fed.client(0), FML(predict_with="meme")
    message = method.broadcast(method.init_server(_context(fed)), me.info, _context(fed))
    upload = method.client(me, message)
    x, _ = me.test.take(slice(None))
    meme = fed.task.shared_model()
    assert torch.equal(method.predict(me, message)(x), meme(x))
    meme.load_state_dict(upload.tensors)
    assert torch.equal(method.predict(me, None)(x), meme(x))
    assert FML().predict(me, message) is me.model


def test_batch_norm_statistics_stay_local_without_buffers():
    """`buffers=False` sends parameters only; a client's copy keeps its own running means."""
    fed = tiny(2, shared_model=seeded_net(hidden=2, norm=True))
    recorder = Recorder()
    loop = make_loop(FML(buffers=False), fed, rounds=2, callbacks=[recorder])
    loop.run()
    assert not any("running" in name for _, _, message in recorder.sent for name in message.tensors)
    first, second = (loop.fetch(index)["modules"]["shared"]["body.1.running_mean"] for index in range(2))
    assert not torch.equal(first, second)
    assert first.abs().sum() > 0
