"""FedProx: the proximal gradient by hand, and FedAvg as its special case."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from potluck.core.training import Training
from potluck.kit import Weights, proximal_term
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedprox import FedProx, proximal_loss
from support.tiny import Recorder, answer, is_one_step, make_loop, tiny


def one_weight(value: float) -> nn.Module:
    layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(layer.weight, value)
    return layer


def run(method, **settings):
    recorder = Recorder()
    make_loop(
        method, tiny(3, hidden=(5,), norm=True, sizes=(12, 9)), callbacks=[recorder], rounds=3, **settings
    ).run()
    return recorder


def same(state: dict, expected: dict) -> bool:
    return state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in state)


def test_gradient_of_the_local_objective():
    """w = 2, w₀ = 1, gradient of the data loss 0.5, μ = 0.1: 0.5 + 0.1·(2 - 1) = 0.6."""
    model = one_weight(2.0)
    reference = {"weight": torch.ones(1, 1, dtype=torch.float64)}
    (0.5 * model.weight.sum() + proximal_term(model, reference, 0.1)).backward()
    assert model.weight.grad.item() == 0.6
    assert proximal_term(model, reference, 0.1).item() == 0.05  # the squared distance, in the loss as well


def test_without_pull_it_is_fedavg_bit_for_bit():
    plain, prox = run(FedAvg()), run(FedProx(mu=0.0))
    assert same(plain.end.state["Net"], prox.end.state["Net"])
    assert not same(plain.end.state["Net"], run(FedProx(mu=0.5)).end.state["Net"])


def test_the_first_local_step_feels_no_pull():
    me = tiny(1).client(0)
    reference = {name: tensor.detach().clone() for name, tensor in me.model.named_parameters()}
    x, y = me.train.take(slice(None))
    gradients = []
    for mu in (0.0, 7.0):
        me.model.zero_grad()
        proximal_loss(me.model, x, y, reference, mu).objective.backward()
        gradients.append([parameter.grad.clone() for parameter in me.model.parameters()])
    assert all(
        torch.equal(proximal, plain_gradient) for proximal, plain_gradient in zip(*gradients, strict=True)
    )


def test_the_second_local_step_feels_the_pull_with_its_weight():
    """Two full batches: the second step is on CE + μ/2 · ‖w − w₀‖²."""
    fed = tiny(1, smooth=True, training=Training(epochs=2, batch_size=0, lr=0.1))
    me, net = fed.client(0), fed.client(0).model
    start = {name: tensor.detach().clone() for name, tensor in net.named_parameters()}
    x, y = me.train.take(slice(None))
    slopes = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
    with torch.no_grad():
        for parameter, slope in zip(net.parameters(), slopes, strict=True):
            parameter -= 0.1 * slope
    far = sum((parameter - start[name]).square().sum() for name, parameter in net.named_parameters())
    answer(FedProx(mu=0.7), me, Weights(start))
    assert is_one_step(net, cross_entropy(net(x), y) + 0.35 * far, me.model)


def test_strong_proximal_term_keeps_clients_near_the_received_model():
    distances = []
    for mu in (0.0, 5.0):
        recorder = run(FedProx(mu=mu, aggregate="full"), participation=1.0)
        sent, received = recorder.sent[-1][2].tensors, recorder.updates[-1][1].payload.tensors
        distances.append(
            sum(float((received[n] - sent[n]).square().sum()) for n in sent if "running" not in n)
        )
    assert distances[1] < distances[0]


def test_upload_equals_that_of_fedavg():
    prox, plain = run(FedProx()), run(FedAvg())
    assert [m.numel() for _, _, m in prox.sent] == [m.numel() for _, _, m in plain.sent]
    assert [u.payload.numel() for _, u in prox.updates] == [u.payload.numel() for _, u in plain.updates]
