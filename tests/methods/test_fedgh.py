"""FedGH: the numbers of its paper, worked out by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from potluck.core.method import Update
from potluck.core.samples import ClassMean
from potluck.core.task import ClientInfo, Context
from potluck.core.training import Training
from potluck.kit import ClassMeans, Head
from potluck.methods.fedgh import FedGH
from support.tiny import Recorder, make_loop, tiny


def zero_head() -> torch.nn.Linear:
    head = torch.nn.Linear(2, 2, dtype=torch.float64)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def update(index: int, means: list[list[float]], labels: list[int]) -> Update[ClassMeans]:
    payload = ClassMeans(torch.tensor(means, dtype=torch.float64), torch.tensor(labels))
    return Update(ClientInfo(index, f"c{index}", 1, "net"), payload)


def context() -> Context:
    return Context(tiny().task, 1, 1, 0, 1)


def test_class_mean_is_the_mean_of_samples_not_of_batch_means():
    means = ClassMean(2)
    means.add(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0]))
    means.add(torch.tensor([[5.0, 0.0]]), torch.tensor([0]))
    rows, labels, counts = means.result()
    assert rows.tolist() == [[3.0, 0.0]]  # the mean of batch means would be 3.5
    assert labels.tolist() == [0]
    assert counts.tolist() == [3]


def test_one_step_per_class_mean_in_client_order():
    head = zero_head()
    FedGH(server_lr=0.1).server(head, [update(0, [[1.0, 2.0]], [0])], context())
    assert torch.allclose(head.weight, torch.tensor([[0.05, 0.1], [-0.05, -0.1]], dtype=torch.float64))
    assert torch.allclose(head.bias, torch.tensor([0.05, -0.05], dtype=torch.float64))
    FedGH(server_lr=0.1).server(head, [update(1, [[1.0, 0.0]], [1])], context())
    assert head.weight[0].tolist() == pytest.approx([-0.0049834, 0.1], abs=1e-7)
    assert head.bias[0].item() == pytest.approx(-0.0049834, abs=1e-7)


def test_per_client_mode_takes_one_step_on_the_mean_loss():
    head = zero_head()
    FedGH(server_lr=0.1, server_mode="per_client").server(
        head, [update(0, [[1.0, 2.0], [1.0, 0.0]], [0, 1])], context()
    )
    assert torch.allclose(head.weight, torch.tensor([[0.0, 0.05], [0.0, -0.05]], dtype=torch.float64))
    assert torch.allclose(head.bias, torch.zeros(2, dtype=torch.float64))


def test_pooled_mode_with_one_batch_equals_one_step_on_all_means():
    pooled, joint = zero_head(), zero_head()
    updates = [update(0, [[1.0, 2.0]], [0]), update(1, [[1.0, 0.0]], [1])]
    FedGH(server_lr=0.1, server_mode="pooled").server(pooled, updates, context())
    together = [update(0, [[1.0, 2.0], [1.0, 0.0]], [0, 1])]
    FedGH(server_lr=0.1, server_mode="per_client").server(joint, together, context())
    assert torch.allclose(pooled.weight, joint.weight)


def test_a_pooled_batch_of_one_makes_a_step_per_mean():
    """From a head of zeros (1, 2) of class 0 and (1, 0) of class 1: two steps do not cancel in the bias, one does."""
    heads = {size: zero_head() for size in (1, 2)}
    updates = [update(0, [[1.0, 2.0]], [0]), update(1, [[1.0, 0.0]], [1])]
    for size, head in heads.items():
        FedGH(server_lr=0.1, server_mode="pooled", server_batch=size).server(head, updates, context())
    assert heads[2].bias.tolist() == pytest.approx([0.0, 0.0], abs=1e-15)
    assert abs(heads[1].bias[0].item()) > 0.004


def test_a_stale_mean_makes_a_shorter_step_and_one_that_counted_before_none():
    head = zero_head()
    old = replace(update(1, [[5.0, 5.0]], [1]), fresh=False)
    FedGH(server_lr=0.1).server(head, [replace(update(0, [[1.0, 2.0]], [0]), weight=0.5), old], context())
    assert head.bias.tolist() == pytest.approx([0.025, -0.025])  # half of 0.1 · (1 - 0.5)
    assert head.weight[0].tolist() == pytest.approx([0.025, 0.05])


def test_the_header_moves():
    """In the published code the head is in no optimiser: three rounds moved it by exactly 0."""
    recorder = Recorder()
    make_loop(FedGH(), callbacks=[recorder], rounds=3).run()
    heads = [message.weights["weight"] for number, client, message in recorder.sent if client == 0]
    assert all(float((after - before).norm()) > 0 for before, after in pairwise(heads))


def test_no_passes_freeze_the_first_header():
    recorder = Recorder()
    make_loop(FedGH(server_passes=0), callbacks=[recorder], rounds=2).run()
    first, second = (message.weights["weight"] for _, client, message in recorder.sent if client == 0)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("classes", "held_classes", "default", "paper"), [(10, 2, 6012, 6002), (100, 10, 55110, 55010)]
)
def test_numbers_that_travel(classes: int, held_classes: int, default: int, paper: int):
    """Table 3 counts 23.45 and 214.88 KiB per client and round, without the head's bias."""
    down = Head({"weight": torch.zeros(classes, 500), "bias": torch.zeros(classes)})
    up = ClassMeans(torch.zeros(held_classes, 500), torch.arange(held_classes))
    assert down.numel() + up.numel() == default
    accounted = FedGH().paper_accounting(down, up)
    assert accounted.up + accounted.down == paper
    assert round(4 * paper / 1024, 2) == {6002: 23.45, 55010: 214.88}[paper]


def test_one_round_against_plain_torch():
    """A full-batch round with two clients, computed a second time in a few lines of torch."""
    fed = tiny(2, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.1))
    recorder = Recorder()
    make_loop(FedGH(server_lr=0.5), fed, rounds=1, callbacks=[recorder]).run()
    head = recorder.sent[0][2].weights
    reference = torch.nn.Linear(3, 3, dtype=torch.float64)
    reference.load_state_dict(head)
    for index in range(2):
        me = fed.client(index)
        me.model.head.load_state_dict(head)
        x, y = me.train.take(slice(None))
        loss = torch.nn.functional.cross_entropy(me.model(x), y)
        parameters = list(me.model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= 0.1 * gradient
        for label in range(3):
            mean = me.model.features(x[y == label]).mean(0).detach()
            loss = torch.nn.functional.cross_entropy(reference(mean), torch.tensor(label))
            for parameter, gradient in zip(
                reference.parameters(), torch.autograd.grad(loss, list(reference.parameters())), strict=True
            ):
                parameter.data -= 0.5 * gradient
    assert torch.allclose(recorder.end.state.weight, reference.weight, atol=1e-12)
    assert torch.allclose(recorder.end.state.bias, reference.bias, atol=1e-12)


def test_a_class_missing_on_a_client_is_not_sent():
    fed = tiny(2, classes_of=[(0,), (0, 2)])
    recorder = Recorder()
    make_loop(FedGH(), fed, rounds=1, callbacks=[recorder]).run()
    labels = {update.client.index: update.payload.labels.tolist() for _, update in recorder.updates}
    assert labels == {0: [0], 1: [0, 2]}


def test_received_protocol_tests_the_global_header():
    fed = tiny(1)
    me = fed.client(0)
    message = Head(
        {
            "weight": torch.zeros(3, 3, dtype=torch.float64),
            "bias": torch.tensor([0.0, 9.0, 0.0], dtype=torch.float64),
        }
    )
    x, _ = me.train.take(slice(None))
    assert (FedGH().predict(me, message)(x).argmax(1) == 1).all()
    assert not torch.allclose(me.model.head.bias, message.weights["bias"])
