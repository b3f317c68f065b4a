"""SCAFFOLD: control variates by hand, and what they leave of FedAvg."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from potluck.core.method import Update
from potluck.core.task import Context
from potluck.core.training import Training
from potluck.kit import ALL, is_statistic
from potluck.loop.faults import Faults, FaultyEngine
from potluck.methods.fedavg import FedAvg
from potluck.methods.scaffold import Change, Scaffold, Start, Variates
from support.families import deep
from support.tiny import Recorder, make_loop, tiny


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def pulled_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objective ½(w - 1)², summed over all parameters, whatever the data."""
    monkeypatch.setattr(
        "potluck.kit.cross_entropy_loss",
        lambda model, x, y: sum(0.5 * (parameter - 1).square().sum() for parameter in model.parameters()),
    )


def started(fed, weight: float, control: float) -> Start:
    tensors = dict(fed.client(0).model.named_parameters())
    return Start(
        {name: torch.full_like(tensor, weight).detach() for name, tensor in tensors.items()},
        {name: torch.full_like(tensor, control).detach() for name, tensor in tensors.items()},
    )


def values(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


@pytest.mark.parametrize("control", ["gradients", "displacement"])
def test_one_step_on_a_parabola(control: str, monkeypatch: pytest.MonkeyPatch):
    """f = ½(w - 1)², w = 0, η = 0.1, K = 1, c = c_k = 0: w_k = 0.1 and c_k⁺ = -1, the gradient."""
    pulled_to_one(monkeypatch)
    fed = tiny(1, training=Training(epochs=1, batch_size=0, lr=0.1))
    me = fed.client(0)
    answer = Scaffold(control=control).client(me, started(fed, 0.0, 0.0))
    assert torch.allclose(values(dict(me.model.named_parameters())), vector(0.1))
    assert torch.allclose(values(me.private["control"]), vector(-1.0))
    assert torch.allclose(values(answer.weights), vector(0.1))
    assert torch.allclose(values(answer.control), vector(-1.0))


@pytest.mark.parametrize("control", ["gradients", "displacement"])
def test_the_correction_enters_every_step_and_leaves_the_control_again(
    control: str, monkeypatch: pytest.MonkeyPatch
):
    """c_k = -1, c = -0.5, w = 0: the step is -η(g + 1 - 0.5); c_k⁺ is again the gradient alone."""
    pulled_to_one(monkeypatch)
    fed = tiny(1, training=Training(epochs=1, batch_size=0, lr=0.1))
    me = fed.client(0)
    message = started(fed, 0.0, -0.5)
    me.private["control"] = {name: torch.full_like(tensor, -1.0) for name, tensor in message.control.items()}
    answer = Scaffold(control=control).client(me, message)
    assert torch.allclose(values(answer.weights), vector(0.05))
    assert torch.allclose(values(me.private["control"]), vector(-1.0))


def test_the_server_divides_weights_by_participants_and_control_by_all_clients():
    """N = 2, m = 1: w moves by the whole change, c by half of it."""
    fed = tiny(2, hidden=(5,))
    names = fed.task.architectures["Net"].parameters
    zeros = {name: torch.zeros(1, dtype=torch.float64) for name in names}
    state = Variates({"Net": dict(zeros)}, {"Net": dict(zeros)})
    change = Change({name: vector(0.1) for name in names}, {name: vector(-1.0) for name in names})
    context = make_loop(Scaffold(), fed).server.context()
    after = Scaffold().server(state, [Update(fed.task.clients[0], change)], context)
    assert torch.equal(values(after.weights["Net"]), vector(*[0.1] * len(names)))
    assert torch.equal(values(after.control["Net"]), vector(*[-0.5] * len(names)))
    halfway = Scaffold(server_lr=0.5).server(state, [Update(fed.task.clients[0], change)], context)
    assert torch.allclose(values(halfway.weights["Net"]), vector(0.05))


def test_while_controls_agree_a_client_trains_as_in_fedavg():
    scaffold, plain = Recorder(), Recorder()
    make_loop(Scaffold(), tiny(2, norm=True), rounds=1, callbacks=[scaffold]).run()
    make_loop(FedAvg(), tiny(2, norm=True), rounds=1, callbacks=[plain]).run()
    for (_, change), (_, weights), (_, _, start) in zip(
        scaffold.updates, plain.updates, scaffold.sent, strict=True
    ):
        for name, tensor in weights.payload.tensors.items():
            if is_statistic(name):
                assert torch.equal(change.payload.statistics[name], tensor)
            else:
                assert torch.equal(change.payload.weights[name], tensor - start.weights[name])


def test_the_first_control_is_the_mean_gradient_of_the_steps():
    fed = tiny(1, training=Training(epochs=1, batch_size=0, lr=0.1))
    me = fed.client(0)
    x, y = me.train.take(slice(None))
    parameters = dict(me.model.named_parameters())
    gradients = torch.autograd.grad(cross_entropy(me.model(x), y), list(parameters.values()))
    weights = {name: tensor.detach().clone() for name, tensor in parameters.items()}
    Scaffold().client(me, Start(weights, {name: torch.zeros_like(t) for name, t in weights.items()}))
    for name, gradient in zip(parameters, gradients, strict=True):
        assert torch.allclose(me.private["control"][name], gradient, atol=1e-13)


def test_both_ways_to_the_control_agree_with_plain_sgd():
    states = []
    for control in ("gradients", "displacement"):
        loop = make_loop(Scaffold(control=control), tiny(3, hidden=(5,), sizes=(12, 9)), rounds=3)
        loop.run()
        states.append(loop.progress.state)
    for name in states[0].control["Net"]:
        assert torch.allclose(states[0].control["Net"][name], states[1].control["Net"][name], atol=1e-12)
        assert torch.allclose(states[0].weights["Net"][name], states[1].weights["Net"][name], atol=1e-12)


@pytest.mark.parametrize("settings", [{"optimizer": "adam", "lr": 0.001}, {"clip_norm": 0.1}])
def test_the_control_stays_a_gradient_where_steps_are_not(settings: dict, monkeypatch: pytest.MonkeyPatch):
    """A steady gradient of -1: Adam's step has no scale and a clipped one is short; c_k⁺ is -1 all the same."""
    monkeypatch.setattr(
        "potluck.kit.cross_entropy_loss",
        lambda model, x, y: -sum(parameter.sum() for parameter in model.parameters()),
    )
    fed = tiny(1, training=Training(epochs=2, batch_size=4, **settings))
    me = fed.client(0)
    Scaffold().client(me, started(fed, 0.0, 0.0))
    assert torch.allclose(values(me.private["control"]), vector(-1.0))


@pytest.mark.parametrize("control", ["gradients", "displacement"])
def test_momentum_does_not_inflate_the_control(control: str, monkeypatch: pytest.MonkeyPatch):
    """A steady gradient of -1 must give c_k⁺ = -1, however far momentum carried the weights."""
    monkeypatch.setattr(
        "potluck.kit.cross_entropy_loss",
        lambda model, x, y: -sum(parameter.sum() for parameter in model.parameters()),
    )
    fed = tiny(1, training=Training(epochs=2, batch_size=4, lr=0.1, momentum=0.9))
    me = fed.client(0)
    Scaffold(control=control).client(me, started(fed, 0.0, 0.0))
    assert torch.allclose(values(me.private["control"]), vector(-1.0))


def test_no_local_step_changes_nothing():
    fed = tiny(1, training=Training(epochs=0))
    me = fed.client(0)
    answer = Scaffold().client(me, started(fed, 0.5, 0.25))
    assert not values(answer.weights).any()
    assert not values(answer.control).any()


def test_twice_the_weights_travel():
    recorder = Recorder()
    make_loop(Scaffold(buffers=False), tiny(1, hidden=(5,)), rounds=1, callbacks=[recorder]).run()
    assert recorder.sent[0][2].numel() == 2 * 55 + 1  # and which job counted last
    assert recorder.updates[0][1].payload.numel() == 2 * 55
    make_loop(Scaffold(), tiny(1, hidden=(5,), norm=True), rounds=1, callbacks=[recorder]).run()
    down, up = recorder.sent[1][2], recorder.updates[1][1].payload
    assert down.numel() - 1 == up.numel() == 2 * 65 + 10  # statistics have no control variate
    accounted = Scaffold().paper_accounting(down, up)
    assert (accounted.up, accounted.down) == (130, 130)


def test_layerwise_controls_belong_to_tensors():
    fed = deep((1, 1), (2, 1), (2, 1), norm=True)
    recorder = Recorder()
    loop = make_loop(Scaffold(aggregate="layerwise"), fed, rounds=2, callbacks=[recorder])
    loop.step()
    state = loop.progress.state
    changes = [update.payload.control for _, update in recorder.updates]
    deep_only, common = "layer1.1.fc.weight", "layer1.0.fc.weight"
    assert torch.allclose(state.control[ALL][deep_only], (changes[1][deep_only] + changes[2][deep_only]) / 2)
    assert torch.allclose(state.control[ALL][common], sum(change[common] for change in changes) / 3)


def test_clients_that_never_took_part_single_samples_and_single_classes():
    fed = tiny(5, hidden=(5, 7), norm=True, sizes=(1, 12, 5), classes_of=[(0,), None])
    recorder = Recorder()
    make_loop(Scaffold(), fed, rounds=3, participation=0.4, callbacks=[recorder]).run()
    assert len(recorder.end.scores) == 5


def test_a_dropped_answer_leaves_the_controls_in_step():
    """c is the mean of the clients' c_k, so an answer that did not count must not count in c_k either."""
    fed = tiny(2, hidden=(5,))
    faults = Faults(crash=0.5)
    loop = make_loop(Scaffold(), fed, rounds=8, min_clients=0)
    loop.dispatcher.engine = FaultyEngine(loop.dispatcher.engine, faults, seed=3)
    recorder = Recorder()
    loop.callbacks = [recorder]
    loop.run()
    failed_jobs = [failure for step in recorder.steps for failure in step.failures]
    assert 3 < len(failed_jobs) < 13
    state, counted = loop.progress.state, []
    for index in range(2):
        private = loop.fetch(index)["private"]
        name = fed.task.clients[index].name
        came = private["before"]["job"] == state.counted.get(name, -1)
        counted.append(private["control"] if came else private["before"]["control"])
    for name, total in state.control["Net"].items():
        assert torch.allclose(total, (counted[0][name] + counted[1][name]) / 2, atol=1e-12), name


def one_parameter(samples: tuple[int, ...]) -> tuple[Variates, Update[Change], Context]:
    """Clients of a network whose w and c are 0, and an answer of the first: Δw = 0.1, Δc = -1."""
    fed = tiny(len(samples), hidden=(5,))
    names = fed.task.architectures["Net"].parameters
    zeros = {name: torch.zeros(1, dtype=torch.float64) for name in names}
    infos = tuple(replace(info, samples=count) for info, count in zip(fed.task.clients, samples, strict=True))
    change = Change({name: vector(0.1) for name in names}, {name: vector(-1.0) for name in names})
    context = make_loop(Scaffold(), fed).server.context()
    state = Variates({"Net": dict(zeros)}, {"Net": dict(zeros)})
    return state, Update(infos[0], change, job=4), replace(context, task=replace(fed.task, clients=infos))


def test_clients_without_data_are_none_of_those_that_control_is_divided_by():
    for samples, expected in (((5, 5), -0.5), ((5, 0), -1.0)):
        state, update, context = one_parameter(samples)
        after = Scaffold().server(state, [update], context)
        assert values(after.control["Net"]).unique().tolist() == [expected]


def test_a_change_of_control_counts_once():
    """Both sent -1; the first one's is in c already, the second one's half of it comes now."""
    state, update, context = one_parameter((5, 5))
    second_update = replace(update, client=context.task.clients[1])
    after = Scaffold().server(
        state, [replace(update, fresh=False), second_update], replace(context, cohort=2)
    )
    assert values(after.control["Net"]).unique().tolist() == [-0.5]


def test_absent_client_learns_which_job_counted():
    state, update, context = one_parameter((5, 5))
    second_update = replace(update, client=context.task.clients[1], job=7)
    state = Scaffold().server(Scaffold().server(state, [update], context), [second_update], context)
    assert state.counted == {update.client.name: 4, second_update.client.name: 7}


def test_no_job_of_a_client_counts_before_the_server_has_one():
    """-1 is no job's number: control variates of jobs 0 and 1 that were lost are not taken for counted ones."""
    fed = tiny(1)
    state = Scaffold().init_server(Context(fed.task, 1, 1, 0))
    assert Scaffold().broadcast(state, fed.task.clients[0], Context(fed.task, 1, 1, 0)).counted == -1
