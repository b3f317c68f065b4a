"""FedMRL: nested features, the private projector, and the mean of the small models."""

import pytest
import torch
from torch.nn import functional as F

from potluck.core.errors import PotluckError
from potluck.core.task import Context
from potluck.core.training import Training
from potluck.core.tree import equal as same_state
from potluck.methods.fedmrl import FedMRL, both_heads, fuse
from support.tiny import Net, Recorder, make_loop, seeded_net, tiny


def narrow(**more):
    """Clients with three features, a shared model with two."""
    return tiny(shared_model=seeded_net(hidden=4, features=2, smooth=True), smooth=True, **more)


def test_the_small_head_sees_the_first_features():
    small = Net(features=2, classes=2)
    small.head = torch.nn.Identity()
    _, seen = both_heads(torch.nn.Identity(), small, torch.tensor([[1.0, 2.0, 3.0]]))
    assert seen.tolist() == [[1.0, 2.0]]


def test_small_features_come_first_in_the_fusion():
    projector = torch.nn.Linear(3, 2, bias=False)
    projector.weight.data = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    fused = fuse(projector, torch.tensor([[5.0]]), torch.tensor([[2.0, 3.0]]))
    assert fused.tolist() == [[5.0, 5.0]]


def test_the_projector_learns_and_persists():
    """HtFLlib never keeps the trained projector: it always works with the random first one."""
    fed = narrow(clients=1, training=Training(epochs=1, batch_size=0, lr=0.1))
    recorder = Recorder()
    loop = make_loop(FedMRL(), fed, rounds=1, callbacks=[recorder])
    loop.run()
    after_one = loop.fetch(0)["modules"]["projector"]["weight"]
    loop = make_loop(FedMRL(), fed, rounds=2)
    loop.run()
    after_two = loop.fetch(0)["modules"]["projector"]["weight"]
    first = fed.client(0).module("projector", lambda: torch.nn.Linear(5, 3)).weight
    assert not torch.equal(after_one, first)
    assert not torch.equal(after_two, after_one)


def test_one_round_against_plain_torch():
    fed = narrow(clients=1, training=Training(epochs=2, batch_size=0, lr=0.1))
    recorder = Recorder()
    loop = make_loop(FedMRL(), fed, rounds=1, callbacks=[recorder])
    loop.run()
    me, small = fed.client(0), fed.task.shared_model()
    projector = me.module("projector", lambda: torch.nn.Linear(5, 3))
    x, y = me.train.take(slice(None))
    parameters = [*me.model.parameters(), *small.parameters(), *projector.parameters()]
    for _ in range(2):
        fused = projector(torch.cat([small.features(x), me.model.features(x)], 1))
        loss = F.cross_entropy(me.model.head(fused), y) + F.cross_entropy(small.head(fused[:, :2]), y)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= 0.1 * gradient
    upload, state = recorder.updates[0][1].payload.tensors, loop.fetch(0)
    assert all(
        torch.allclose(upload[name], tensor, atol=1e-12) for name, tensor in small.state_dict().items()
    )
    for actual, expected in ((state["model"], me.model), (state["modules"]["projector"], projector)):
        assert all(torch.allclose(actual[name], t, atol=1e-12) for name, t in expected.state_dict().items())


def test_the_aggregate_is_not_the_last_client():
    """The release stores one module's state under every client, so its mean is the last client's model."""
    recorder = Recorder()
    make_loop(FedMRL(), narrow(clients=3, sizes=(12, 24, 6)), rounds=1, callbacks=[recorder]).run()
    uploads = [update.payload.tensors["head.weight"] for _, update in recorder.updates]
    mean = (12 * uploads[0] + 24 * uploads[1] + 6 * uploads[2]) / 42
    assert torch.allclose(recorder.end.state["head.weight"], mean, atol=1e-12)
    assert not torch.allclose(recorder.end.state["head.weight"], uploads[-1], atol=1e-4)


def test_equal_sizes_are_allowed():
    """d1 = d2: both heads read the whole of the fused features."""
    recorder = Recorder()
    make_loop(FedMRL(), tiny(2), rounds=1, callbacks=[recorder]).run()
    assert recorder.end.state["head.weight"].shape == (3, 3)


def test_a_wider_shared_model_is_refused():
    with pytest.raises(
        PotluckError, match=r"client 0 'Net' has 3 features, the shared model 4\. Set models\.shared"
    ):
        make_loop(FedMRL(), tiny(shared_model=seeded_net(features=4)))


def test_predict_uses_the_selected_model():
    fed = narrow(clients=1)
    me, context = fed.client(0), Context(fed.task, 1, 1, 0, 1)
    method = FedMRL()
    message = method.broadcast(method.init_server(context), me.info, context)
    method.client(me, message)
    x, _ = me.test.take(slice(None))
    before = me.state()
    local, received = method.predict(me, None)(x), method.predict(me, message)(x)
    assert same_state(me.state(), before)
    small = me.module("shared", fed.task.shared_model)
    projector = me.module("projector", lambda: torch.nn.Linear(5, 3))
    fused = fuse(projector, small.features(x), me.model.features(x))
    assert torch.equal(local, me.model.head(fused))
    assert not torch.allclose(local, received)  # the received small model is the untrained one
    assert torch.equal(FedMRL(predict_with="fused-small").predict(me, None)(x), small.head(fused[:, :2]))
    assert torch.equal(FedMRL(predict_with="small").predict(me, None)(x), small(x))
    assert torch.equal(FedMRL(predict_with="large").predict(me, None)(x), me.model(x))
