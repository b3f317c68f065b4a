"""Methods with a shared small model or public data: common invariants, and joint training."""

from operator import attrgetter

import pytest
import torch

from potluck.core.method import Update
from potluck.core.task import Context
from potluck.core.training import Training
from potluck.core.tree import equal as same_state
from potluck.kit import Weights, average
from potluck.loop.schedule import Evaluation
from potluck.methods import method_class
from support.tiny import Recorder, context, make_loop, seeded_net, tiny

NAMES = ("pfedafm", "fml", "fedkd", "fedmd", "fedapen", "fedmrl")
ALL_TESTS = Evaluation(also=("received", "shared"))


@pytest.mark.parametrize("name", NAMES)
def test_hard_populations_are_survived(name: str):
    """BatchNorm with one-sample clients, one-class clients, a trailing batch of one, clients never asked."""
    fed = tiny(
        5,
        norm=True,
        sizes=(1, 5, 2, 24, 9),
        classes_of=[(0,), None, (1, 2), None, (2,)],
        shared_model=seeded_net(hidden=2, norm=True),
    )
    recorder = Recorder()
    method = method_class(name)()
    make_loop(method, fed, rounds=3, participation=0.4, callbacks=[recorder], evaluation=ALL_TESTS).run()
    assert len(recorder.end.scores) == 5
    assert all(torch.isfinite(torch.tensor(score.score.loss_sum)) for score in recorder.end.scores)
    assert not any(step.failures for step in recorder.steps)


@pytest.mark.parametrize("name", NAMES)
def test_prediction_leaves_the_client_as_it_is(name: str):
    fed = tiny(1, norm=True, sizes=(40,), shared_model=seeded_net(hidden=2, norm=True))
    method, context = method_class(name)(), Context(fed.task, 1, 2, 0, 1)
    state = method.init_server(context)
    me = fed.client(0)
    message = method.broadcast(state, me.info, context).copy()
    x, _ = me.test.take(slice(None))
    for _ in range(2):  # before the first job, and after it
        before = me.state()
        me.model.eval()
        scores = [method.predict(me, sent)(x) for sent in (None, message, None)]
        assert same_state(me.state(), before)
        assert torch.equal(scores[0], scores[2])
        method.client(me, message)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_client_goes_on_as_if_nothing_had_happened(name: str):
    """With momentum kept over rounds, so that every optimiser's state is there."""
    settings = Training(epochs=1, batch_size=5, lr=0.1, momentum=0.9, keep_optimizer=True)
    fed = tiny(1, sizes=(40,), training=settings)
    method, context = method_class(name)(), Context(fed.task, 1, 2, 0, 1)
    message = method.broadcast(method.init_server(context), fed.task.clients[0], context).copy()
    uninterrupted, restored = fed.client(0), fed.client(0)
    method.client(uninterrupted, message)
    restored.restore(uninterrupted.state())
    for me in (uninterrupted, restored):
        me.begin("train", 1, 2, 2)
    answers = [method.client(me, message) for me in (uninterrupted, restored)]
    tensors = [answer.flatten()[0] for answer in answers]
    assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0])
    assert same_state(uninterrupted.state(), restored.state())


@pytest.mark.parametrize("name", NAMES)
def test_answers_may_come_late(name: str):
    """A buffered asynchronous schedule: two answers make a step, three clients are at work."""
    recorder = Recorder()
    make_loop(method_class(name)(), rounds=3, buffer=2, concurrency=3, callbacks=[recorder]).run()
    assert any(max(step.record.staleness) > 0 for step in recorder.steps)


def test_models_trained_together_are_clipped_apart():
    """A loss a thousand times steeper for one model does not shrink the other's step."""
    fed = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=1.0, clip_norm=1.0))
    me, shared_model = fed.client(0), fed.task.shared_model()
    before = [parameter.detach().clone() for parameter in me.model.parameters()]
    me.fit_models(
        {"model": me.model, "other": shared_model},
        lambda x, y: me.model(x).sum() + 1000 * shared_model(x).sum(),
    )
    moved = sum(
        float((now - then).detach().square().sum())
        for now, then in zip(me.model.parameters(), before, strict=True)
    )
    assert moved == pytest.approx(1.0)


@pytest.mark.parametrize(("by", "expected"), [("uniform", 1.0), ("samples", 2.0)])
def test_a_stale_answer_weighs_less(by: str, expected: float):
    """Values 0 and 3, the second discounted to one half: 1.5 / 1.5, or with 4 and 16 samples 24 / 12."""
    infos = tiny(2, sizes=(4, 16)).task.clients
    parts = [Weights({"w": torch.tensor(0.0)}), Weights({"w": torch.tensor(3.0)})]
    updates = [Update(infos[0], parts[0]), Update(infos[1], parts[1], staleness=1, weight=0.5)]
    averaged = average(context(), {"w": torch.tensor(9.0)}, updates, attrgetter("tensors"), by=by)
    assert averaged["w"].item() == expected
