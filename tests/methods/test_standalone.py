"""Standalone: nothing travels, and clients do not influence each other."""

import torch
from torch.nn.functional import cross_entropy

from potluck.core.training import Training
from potluck.methods.standalone import Standalone
from support.tiny import Recorder, make_loop, tiny


def trained(fed, client: int, **schedule):
    loop = make_loop(Standalone(), fed, **schedule)
    loop.run()
    return loop.fetch(client)["model"]


def test_standalone_weights_do_not_depend_on_data_of_other_clients():
    reference = trained(tiny(3), 0)
    changed_data = trained(tiny(3, classes_of=[None, (0,), (1,)], sizes=(12, 5, 8)), 0)
    assert reference.keys() == changed_data.keys()
    assert all(torch.equal(reference[name], changed_data[name]) for name in reference)


def test_one_batch_is_one_plain_gradient_step():
    fed = tiny(1, training=Training(epochs=1, batch_size=0, lr=0.1))
    result = trained(fed, 0, rounds=1)
    me = fed.client(0)
    x, y = me.train.take(slice(None))
    parameters = dict(me.model.named_parameters())
    gradients = torch.autograd.grad(cross_entropy(me.model(x), y), list(parameters.values()))
    for (name, before), gradient in zip(parameters.items(), gradients, strict=True):
        assert torch.allclose(result[name], before - 0.1 * gradient, atol=1e-15)


def test_nothing_travels():
    recorder = Recorder()
    make_loop(Standalone(), tiny(2), callbacks=[recorder]).run()
    assert [message.numel() for _, _, message in recorder.sent] == [0] * 4
    assert [update.payload.numel() for _, update in recorder.updates] == [0] * 4
    assert all(step.record.floats_up == step.record.floats_down == 0 for step in recorder.steps)


def test_only_the_selected_clients_train():
    fed = tiny(4)
    recorder = Recorder()
    loop = make_loop(Standalone(), fed, rounds=1, participation=0.25, callbacks=[recorder])
    loop.run()
    (chosen,) = {client for _, client, _ in recorder.sent}
    for index in range(4):
        before, after = fed.client(index).model.head.weight, loop.fetch(index)["model"]["head.weight"]
        assert torch.equal(before, after) == (index != chosen)
