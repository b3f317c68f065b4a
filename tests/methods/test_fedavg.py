"""FedAvg in its three forms: means worked out by hand, and the identity with centralised training."""

from operator import attrgetter

import pytest
import torch
from torch.nn.functional import cross_entropy

from potluck.core.errors import PotluckError
from potluck.core.method import Update
from potluck.core.task import ClientInfo
from potluck.core.training import Training
from potluck.kit import ALL, Groups, Weights, average_groups
from potluck.methods.fedavg import FedAvg
from support.families import Deep, deep, population
from support.tiny import Recorder, context, make_loop, tiny


def update(index: int, samples: int, architecture: str = "net", **values: float) -> Update[Weights]:
    tensors = {name: torch.tensor([value]) for name, value in values.items()}
    return Update(ClientInfo(index, f"c{index}", samples, architecture), Weights(tensors))


def averaged(groups: Groups, updates: list[Update[Weights]], weighting="samples") -> dict[str, float]:
    result = average_groups(context(), groups, updates, attrgetter("tensors"), by=weighting)
    return {name: tensor.item() for group in result.values() for name, tensor in group.items()}


def test_the_mean_is_weighted_by_samples():
    groups = {ALL: {"w": torch.tensor([9.0])}}
    updates = [update(0, 1, w=0.0), update(1, 3, w=4.0)]
    assert averaged(groups, updates) == {"w": 3.0}
    assert averaged(groups, updates, "uniform") == {"w": 2.0}


def test_layerwise_takes_each_mean_over_its_owners():
    groups = {ALL: {"layer1.0": torch.tensor([9.0]), "layer1.1": torch.tensor([9.0])}}
    updates = [
        update(0, 7, "A", **{"layer1.0": 1.0}),
        update(1, 7, "B", **{"layer1.0": 3.0, "layer1.1": 5.0}),
    ]
    assert averaged(groups, updates) == {"layer1.0": 2.0, "layer1.1": 5.0}
    assert averaged(groups, updates[:1]) == {"layer1.0": 1.0, "layer1.1": 9.0}  # no owner: the old value


def test_same_arch_keeps_groups_apart():
    groups = {"A": {"w": torch.tensor([9.0])}, "B": {"w": torch.tensor([8.0])}}
    result = average_groups(
        context(), groups, [update(0, 1, "A", w=1.0)], attrgetter("tensors"), by="samples"
    )
    assert result["A"]["w"].item() == 1.0
    assert result["B"]["w"].item() == 8.0


def test_one_full_batch_step_equals_centralised_sgd():
    fed = tiny(2, hidden=(5,), sizes=(6, 12), training=Training(epochs=1, batch_size=0, lr=0.1))
    recorder = Recorder()
    make_loop(FedAvg(aggregate="full"), fed, rounds=1, callbacks=[recorder]).run()
    model = fed.client(0).model
    data = [fed.client(index).train.take(slice(None)) for index in range(2)]
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(cross_entropy(model(x), y), list(parameters.values()))
    for (name, before), gradient in zip(parameters.items(), gradients, strict=True):
        assert torch.allclose(recorder.end.state[ALL][name], before - 0.1 * gradient, atol=1e-14)


def test_clients_start_from_one_common_initialisation():
    recorder = Recorder()
    make_loop(FedAvg(), tiny(4, hidden=(5,)), rounds=1, callbacks=[recorder]).run()
    first, *later_weights = (message.tensors["head.weight"] for _, _, message in recorder.sent)
    assert all(torch.equal(first, weight) for weight in later_weights)


@pytest.mark.parametrize(("buffers", "numbers"), [(True, 75), (False, 65)])
def test_batch_norm_statistics_are_sent_only_if_configured(buffers: bool, numbers: int):
    """25 + 18 + 12 weights and biases, 5 + 5 of the norm; its statistics are 5 + 5, its counter stays home."""
    recorder = Recorder()
    make_loop(FedAvg(buffers=buffers), tiny(2, hidden=(5,), norm=True), rounds=1, callbacks=[recorder]).run()
    down, up = recorder.sent[0][2], recorder.updates[0][1].payload
    assert (down.numel(), up.numel()) == (numbers, numbers)
    accounted = FedAvg().paper_accounting(down, up)
    assert (accounted.up, accounted.down) == (65, 65)


def test_layerwise_average_of_nested_depths_shares_common_layers():
    fed = deep((1, 1), (2, 1))
    recorder = Recorder()
    make_loop(FedAvg(aggregate="layerwise", weight="uniform"), fed, rounds=1, callbacks=[recorder]).run()
    small, large = (sent_update.payload.tensors for _, sent_update in recorder.updates)
    state = recorder.end.state[ALL]
    assert torch.equal(
        state["layer1.0.fc.weight"], (small["layer1.0.fc.weight"] + large["layer1.0.fc.weight"]) / 2
    )
    assert torch.equal(state["layer1.1.fc.weight"], large["layer1.1.fc.weight"])
    assert "layer1.1.fc.weight" not in recorder.sent[0][2].tensors


def test_unmet_needs_are_reported_before_training():
    with pytest.raises(PotluckError, match="same architecture"):
        make_loop(FedAvg(aggregate="full"), tiny(2))
    with pytest.raises(PotluckError, match="nested depth"):
        make_loop(FedAvg(aggregate="layerwise"), tiny(2))


def test_the_global_model_is_the_deepest_with_the_shared_weights():
    fed = deep((1, 1), (2, 1))
    method = FedAvg(aggregate="layerwise")
    loop = make_loop(method, fed, rounds=1)
    loop.run()
    x, _ = fed.client(0).train.take(slice(None))
    model = Deep((2, 1)).double()
    model.load_state_dict(loop.progress.state[ALL])
    predictor = method.predict_server(loop.progress.state, loop.server.context())
    assert predictor is not None
    assert torch.equal(predictor(x), model(x))
    groups = make_loop(FedAvg(), tiny(2))
    assert FedAvg().predict_server(groups.progress.state, groups.server.context()) is None


def test_single_samples_and_rare_participation_are_survived():
    fed = tiny(4, hidden=(5,), norm=True, sizes=(1, 5, 12), classes_of=[(0,), None])
    recorder = Recorder()
    make_loop(FedAvg(), fed, rounds=3, participation=0.3, callbacks=[recorder]).run()
    assert len(recorder.end.scores) == 4


def test_received_protocol_tests_the_server_weights_and_changes_nothing():
    fed = population([Deep().double()])
    me = fed.client(0)
    before = {name: tensor.clone() for name, tensor in me.model.state_dict().items()}
    message = Weights({name: torch.zeros_like(tensor) for name, tensor in before.items()})
    x, _ = me.train.take(slice(None))
    assert torch.equal(FedAvg().predict(me, message)(x), torch.zeros(12, 3, dtype=torch.float64))
    assert all(torch.equal(before[name], tensor) for name, tensor in me.model.state_dict().items())
