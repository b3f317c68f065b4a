"""LG-FedAvg: the head is averaged, extractors never leave their clients."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from potluck.core.errors import PotluckError
from potluck.core.needs import check_needs
from potluck.core.training import Training
from potluck.federation.members import Member, federate
from potluck.kit import Head
from potluck.methods.lg_fedavg import LGFedAvg
from support.tiny import (
    Net,
    Recorder,
    answer,
    context,
    is_one_step,
    make_loop,
    points,
    same,
    tiny,
    update,
    weights,
)


def head(value: float) -> Head:
    return Head(
        {
            "weight": torch.full((3, 3), value, dtype=torch.float64),
            "bias": torch.full((3,), value, dtype=torch.float64),
        }
    )


@pytest.mark.parametrize(("weight", "mean"), [("samples", 3.0), ("uniform", 2.0)])
def test_headers_are_averaged_by_samples_or_uniformly(weight: str, mean: float):
    updates = [update(head(0.0), 0, samples=1), update(head(4.0), 1, samples=3)]
    result = LGFedAvg(weight=weight).server(head(9.0).weights, updates, context())
    assert result["weight"].tolist() == [[mean] * 3] * 3
    assert result["bias"].tolist() == [mean] * 3


def test_a_received_header_leaves_the_extractor_alone_bit_for_bit():
    me = tiny(1, training=Training(epochs=0)).client(0)
    before = weights(me)
    answer(LGFedAvg(), me, head(4.0))
    after = weights(me)
    body = {name: tensor for name, tensor in before.items() if name.startswith("body.")}
    assert same(body, {name: after[name] for name in body})
    assert (after["head.weight"] == 4.0).all()


def test_extractor_and_header_learn_together():
    """One full batch is one gradient step of the whole model under the received header."""
    fed = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.1))
    me, net = fed.client(0), fed.client(0).model
    received = {name: tensor + 0.5 for name, tensor in net.head.state_dict().items()}
    net.head.load_state_dict(received)
    x, y = me.train.take(slice(None))
    sent = answer(LGFedAvg(), me, Head(received))
    assert is_one_step(net, cross_entropy(net(x), y), me.model)
    assert same(sent.weights, me.model.head.state_dict())


def test_extractors_differ_and_headers_meet():
    recorder = Recorder()
    make_loop(LGFedAvg(), tiny(2, hidden=(5, 5)), rounds=2, callbacks=[recorder]).run()
    first, second = (recorder.end.fetch(index)["model"] for index in (0, 1))
    assert not torch.equal(first["body.0.weight"], second["body.0.weight"])
    received = [message.weights["weight"] for number, _, message in recorder.sent if number == 2]
    assert torch.equal(*received)
    sent = [update.payload.weights["weight"] for number, update in recorder.updates if number == 1]
    assert torch.allclose(received[0], (sent[0] + sent[1]) / 2)


@pytest.mark.parametrize(("classes", "numbers", "kib"), [(10, 5010, 39.14), (100, 50100, 391.41)])
def test_numbers_that_travel(classes: int, numbers: int, kib: float):
    """Table 3 of FedGH, both directions, bias included."""
    message = Head({"weight": torch.zeros(classes, 500), "bias": torch.zeros(classes)})
    assert message.numel() == numbers
    assert round(2 * 4 * numbers / 1024, 2) == kib
    wide = Head({"weight": torch.zeros(100, 512), "bias": torch.zeros(100)})
    assert round(20 * 4 * wide.numel() / 2**20, 3) == 3.914


def test_received_protocol_tests_the_averaged_header_and_changes_nothing():
    me = tiny(1).client(0)
    before = weights(me)
    message = Head(
        {"weight": torch.zeros(3, 3, dtype=torch.float64), "bias": torch.tensor([0.0, 0.0, 9.0]).double()}
    )
    x, _ = me.train.take(slice(None))
    assert (LGFedAvg().predict(me, message)(x).argmax(1) == 2).all()
    assert torch.equal(LGFedAvg().predict(me, None)(x), me.model(x))
    assert same(before, weights(me))


def test_partial_participation_and_one_class_clients():
    fed = tiny(4, classes_of=[(0,), (1, 2)], norm=True, sizes=(12, 1))
    recorder = Recorder()
    make_loop(LGFedAvg(), fed, rounds=3, participation=0.5, callbacks=[recorder]).run()
    assert all(len(step.record.participants) == 2 for step in recorder.steps)
    assert torch.isfinite(recorder.end.state["weight"]).all()


def test_unequal_heads_are_refused_with_the_remedy():
    members = [Member(Net(features=3), points(6, 0)), Member(Net(features=4), points(6, 1))]
    with pytest.raises(PotluckError, match="feature_dim"):
        check_needs(LGFedAvg(), federate(members, num_classes=3).task)
