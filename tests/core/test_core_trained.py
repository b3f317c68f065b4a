"""Training parts of a model: what is frozen, what is exchanged and saved, and what stays the same on every engine."""

from dataclasses import replace

import pytest
import torch

import potluck
from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.model import tensors_of
from potluck.core.needs import check_needs
from potluck.core.trained import (
    TrainRule,
    architecture_name,
    model_name,
    pair_models,
    parse_rule,
    rules_by_name,
    train_only,
)
from potluck.core.training import Training
from potluck.federation.population import build_federation
from potluck.methods import method_class
from support.tiny import Net, seeded_net, tiny


def frozen_net(rule: str, **shape: object) -> Net:
    net = seeded_net(**shape)
    train_only(net, parse_rule(rule))
    return net


def learned(net: Net) -> set[str]:
    return {name for name, parameter in net.named_parameters() if parameter.requires_grad}


def experiment(train: str, models: str = "small-mlp,small-cnn", method: str = "fedavg") -> potluck.Experiment:
    return potluck.Experiment.model_validate(
        {
            "method": {"name": method},
            "data": {"name": "digits", "limit": 100},
            "partition": {"rule": "iid", "clients": 4},
            "models": {"names": models},
            "training": {"train": train, "epochs": 1},
            "schedule": {"rounds": 2},
            "engine": {"name": "serial"},
        }
    )


def test_head_freezes_the_extractor_only():
    assert learned(frozen_net("head")) == {"head.weight", "head.bias"}
    assert frozen_net("head").frozen == ("body",)


def test_last_layers_are_counted_by_weights_and_take_the_norm_behind_them():
    net = frozen_net("last:2", norm=True)  # body: 0 linear, 1 norm, 2 relu, 3 linear, 4 relu
    assert net.frozen == ()
    assert len(learned(net)) == 8
    net = frozen_net("last:1", norm=True)
    assert learned(net) == {"body.3.weight", "body.3.bias", "head.weight", "head.bias"}
    assert net.frozen == ("body.0", "body.1", "body.2")


def test_frozen_modules_stay_in_eval_mode():
    net = frozen_net("last:1", norm=True).train()
    assert [net.body[place].training for place in range(4)] == [False, False, False, True]
    before = net.body[1].running_mean.clone()
    net(torch.randn(6, 4).double())
    assert torch.equal(net.body[1].running_mean, before)


def test_frozen_tensors_are_neither_sent_nor_saved():
    net = frozen_net("last:1", norm=True)
    assert set(tensors_of(net)) == learned(net)
    assert set(net.trained_state()) == learned(net)
    fed = tiny(training=Training(train="head"))
    architecture = fed.task.architectures[fed.task.clients[0].architecture]
    assert set(architecture.initial) == {"head.weight", "head.bias"} == architecture.parameters
    assert architecture.num_parameters == 3 * 3 + 3
    state = fed.client(0).state()
    assert [name for name in state.tensors if name.startswith("/model/")] == [
        "/model/head.weight",
        "/model/head.bias",
    ]


def test_a_restored_client_has_the_trained_head_on_its_own_extractor():
    fed = tiny(training=Training(train="head"))
    me = fed.client(1)
    me.fit()
    restored = fed.client(1)
    restored.restore(me.state())
    assert all(
        torch.equal(a, b)
        for a, b in zip(me.model.state_dict().values(), restored.model.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_changes_trained_parameters_only(optimizer: str):
    training = Training(
        train="last:1", epochs=1, batch_size=4, optimizer=optimizer, weight_decay=0.1, lr=0.01
    )
    me = tiny(norm=True, training=training).client(0)
    before = {name: tensor.clone() for name, tensor in me.model.state_dict().items()}
    assert len(me.optimizer(me.model).param_groups[0]["params"]) == 4
    me.fit()
    changed = {
        name for name, tensor in me.model.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert changed == {"body.3.weight", "body.3.bias", "head.weight", "head.bias"}


def test_clients_of_one_architecture_share_its_frozen_tensors():
    fed = build_federation(experiment("head"), method_class("fedavg")())
    first, second = fed.client(0).model, fed.client(2).model
    common = fed.task.architectures[fed.task.clients[0].architecture].build()
    frozen = {name for name in first.state_dict() if name not in first.trained_state()}
    assert frozen
    assert not any(name.startswith("head.") for name in frozen)
    for name in frozen:
        assert first.state_dict()[name].data_ptr() == second.state_dict()[name].data_ptr()
        assert torch.equal(first.state_dict()[name], common.state_dict()[name])
    assert not torch.equal(first.head.weight, second.head.weight)


def test_clients_brought_by_python_keep_their_own_extractors():
    fed = tiny(hidden=(5,), training=Training(train="head"))
    assert not torch.equal(fed.client(0).model.body[0].weight, fed.client(1).model.body[0].weight)


@pytest.mark.parametrize("text", ["heads", "last:0", "last", "all:1", "last:x", ""])
def test_unknown_rules_are_one_sentence(text: str):
    with pytest.raises(PotluckError, match="training.train = .* is not a rule; choose all, head"):
        Training(train=text)


def test_more_layers_than_there_are_is_an_error():
    with pytest.raises(PotluckError, match="'last:3' needs 3 layers before the head, and Net has 2"):
        frozen_net("last:3")


def test_rules_per_model():
    head, last = TrainRule("head"), TrainRule("last", 2)
    assert rules_by_name("head,last:2", ["a", "b"]) == {"a": head, "b": last}
    assert rules_by_name("head", ["a", "b"]) == {"a": head, "b": head}
    with pytest.raises(PotluckError, match=r"has 2 rules for 3 models \(a, b, c\)"):
        pair_models(["a", "b", "c"], "head,all")
    pairs = pair_models(["a"], "head,last:2")
    assert pairs == [("a", head), ("a", last)]
    assert [architecture_name(name, rule, pairs) for name, rule in pairs] == ["a#head", "a#last:2"]
    assert [model_name(name) for name in ("a#head", "a#last:2", "a", "x#y")] == ["a", "a", "a", "x#y"]


def test_one_model_trained_in_two_ways_is_two_architectures():
    fed = build_federation(experiment("head,all", "small-mlp", "standalone"), method_class("standalone")())
    assert [info.architecture for info in fed.task.clients] == ["small-mlp#head", "small-mlp#all"] * 2
    assert fed.client(0).model.frozen
    assert not fed.client(1).model.frozen


def test_methods_that_combine_extractors_refuse_frozen_ones():
    method: Method = method_class("inclusivefl")()
    fed = build_federation(experiment("last:1", "nested5", "inclusivefl"), method)
    with pytest.raises(PotluckError, match="set training.train = 'all', or choose another method"):
        check_needs(method, fed.task)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedgh"])
def test_runs_on_all_engines_and_resumes(method: str, tmp_path):
    base = experiment("last:1", "small-mlp", method)
    uninterrupted = potluck.run(base, out=tmp_path / "whole")
    stacked = potluck.run(base, out=tmp_path / "stacked", engine={"name": "serial", "vectorize": "on"})
    half = replace(base.schedule, rounds=1)
    potluck.run(base.model_copy(update={"schedule": half}), out=tmp_path / "resumed")
    resumed = potluck.run(base, out=tmp_path / "resumed", resume=True)
    scores = [[line["accuracy"] for line in run.rounds] for run in (uninterrupted, stacked, resumed)]
    assert scores[0] == scores[2]
    assert scores[0] == pytest.approx(scores[1], abs=0.05)
