"""FedProto: prototypes, their pull, their means, and the rules of prediction."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from potluck.core.payload import PayloadError
from potluck.core.training import Training
from potluck.kit import ClassVectors, class_mse, prototype_loss
from potluck.methods.fedproto import FedProto, Prototypes
from potluck.methods.standalone import Standalone
from support.tiny import Net, Recorder, answer, context, is_one_step, make_loop, same, tiny, update, weights

NONE = ClassVectors(torch.zeros(0, 3).double(), torch.zeros(0).long())
FULL = ClassVectors(5 * torch.eye(3, dtype=torch.float64))


def prototype(value: float, count: int) -> Prototypes:
    return Prototypes(torch.full((1, 3), value).double(), torch.tensor([0]), torch.tensor([count]))


@pytest.mark.parametrize(("aggregate", "mean"), [("mean", 4.0), ("weighted", 5.0), ("literal", 2.5)])
def test_three_ways_to_average(aggregate: str, mean: float):
    method, ctx = FedProto(aggregate=aggregate), context()
    updates = [update(prototype(2.0, 1), 0), update(prototype(6.0, 3), 1)]
    state = method.server(method.init_server(ctx), updates, ctx)
    assert state.rows[0].tolist() == [mean] * 3
    assert state.known.tolist() == [True, False, False]


def test_the_distance_is_a_mean_over_entries():
    z, y = torch.ones(1, 2), torch.tensor([0])
    assert class_mse(z, y, torch.zeros(1, 2), torch.tensor([True])).item() == 1.0


def test_a_sample_of_an_unknown_class_has_no_pull():
    z = torch.tensor([[1.0, 1.0], [1.0, 1.0]], requires_grad=True)
    loss = class_mse(z, torch.tensor([0, 1]), torch.zeros(2, 2), torch.tensor([True, False]))
    gradient = torch.autograd.grad(loss, z)[0]
    assert gradient[1].tolist() == [0.0, 0.0]
    assert gradient[0].tolist() == [0.5, 0.5]  # 2·1/K, halved by the batch of two


def test_the_loss_is_cross_entropy_plus_the_weighted_pull():
    net = Net().double()
    x, y = torch.randn(4, 4).double(), torch.tensor([0, 1, 2, 0])
    z = net.features(x)
    expected = cross_entropy(net(x), y) + 10 * (z - FULL.rows[y]).square().mean()
    known_classes = torch.ones(3, dtype=torch.bool)
    assert prototype_loss(net, x, y, FULL.rows, known_classes, 10.0).objective.item() == pytest.approx(
        expected.item()
    )


@pytest.mark.parametrize("collect", ["after", "training", "last_epoch"])
def test_a_client_trains_on_that_loss(collect: str):
    fed = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.1))
    me, net = fed.client(0), fed.client(0).model
    x, y = me.train.take(slice(None))
    z = net.features(x)
    loss = cross_entropy(net.head(z), y) + 3.0 * (z - FULL.rows[y]).square().mean()
    answer(FedProto(collect=collect, prototype_weight=3.0), me, FULL)
    assert is_one_step(net, loss, me.model)


@pytest.mark.parametrize("collect", ["after", "training", "last_epoch"])
def test_the_first_round_is_local_training(collect: str):
    fed = tiny(1)
    alone, drawn = fed.client(0), fed.client(0)
    answer(Standalone(), alone, None)
    answer(FedProto(collect=collect), drawn, NONE)
    assert same(weights(alone), weights(drawn))


def test_when_class_means_are_taken():
    settings = Training(epochs=2, batch_size=0, lr=0.1)
    fed = tiny(1, seed=1, training=settings)
    x, y = fed.client(0).train.take(slice(None))

    def means(model: torch.nn.Module) -> torch.Tensor:
        return torch.stack([model.features(x[y == label]).mean(0) for label in range(3)]).detach()

    once = tiny(1, seed=1, training=Training(epochs=1, batch_size=0, lr=0.1)).client(0)
    first = means(once.model)
    answer(Standalone(), once, None)
    second = means(once.model)
    me = fed.client(0)
    after = answer(FedProto(), me, NONE)
    assert torch.allclose(after.means, means(me.model))
    assert after.counts is None
    last = answer(FedProto(collect="last_epoch"), fed.client(0), NONE)
    assert torch.allclose(last.means, second)
    both = answer(FedProto(collect="training"), fed.client(0), NONE)
    assert torch.allclose(both.means, (first + second) / 2)


def test_counts_travel_only_where_the_mean_is_weighted():
    sent = answer(FedProto(aggregate="weighted"), tiny(1).client(0), NONE)
    assert sent.counts.tolist() == [4, 4, 4]
    bare = Prototypes(sent.means, sent.labels)
    FedProto().check_update(bare, update(None).client, context())
    with pytest.raises(PayloadError, match="counts is missing"):
        FedProto(aggregate="literal").check_update(bare, update(None).client, context())


@pytest.mark.parametrize("collect", ["after", "training", "last_epoch"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_counts_are_samples_whatever_the_epochs(collect: str, epochs: int):
    """Seven samples of classes 0, 2, 0, 2, …: four of class 0 and three of class 2; the smaller last batch is dropped."""
    settings = Training(epochs=epochs, batch_size=4, lr=0.1, drop_last=True)
    me = tiny(1, sizes=(7,), classes_of=[(0, 2)], training=settings, seed=1).client(0)
    sent = answer(FedProto(aggregate="weighted", collect=collect), me, NONE)
    assert sent.labels.tolist() == [0, 2]
    assert sent.counts.tolist() == [4, 3]


@pytest.mark.parametrize(("aggregate", "divisor"), [("weighted", 12 + 6), ("literal", 2 * (12 + 6))])
def test_a_run_weights_means_of_all_epochs_by_samples(aggregate: str, divisor: int):
    """Clients with 12 and 6 samples of class 1: (12·C_0 + 6·C_1)/18, as printed once more divided by two senders."""
    fed = tiny(
        3, sizes=(12, 6, 4), classes_of=[(1,), (1,), (0,)], training=Training(epochs=3, batch_size=4, lr=0.1)
    )
    recorder = Recorder()
    method = FedProto(collect="training", aggregate=aggregate)
    make_loop(method, fed, rounds=1, callbacks=[recorder]).run()
    first, second, _ = (item.payload for _, item in recorder.updates)
    assert (first.counts.tolist(), second.counts.tolist()) == ([12], [6])
    expected = (12 * first.means[0] + 6 * second.means[0]) / divisor
    assert torch.allclose(recorder.end.state.rows[1], expected, rtol=1e-14)


def test_prediction_by_prototype():
    me = tiny(1, seed=1, classes_of=[(0, 2)]).client(0)
    before = weights(me)
    x, _ = me.train.take(slice(None))
    z = me.model.features(x)
    rows = torch.stack([z.mean(0) + 90, z.mean(0), z.mean(0) + 50]).detach()
    message = ClassVectors(rows)
    assert (FedProto(prediction="proto_all").predict(me, message)(x).argmax(1) == 1).all()
    assert (FedProto(prediction="proto_own").predict(me, message)(x).argmax(1) == 2).all()
    assert torch.equal(FedProto().predict(me, message)(x), me.model(x))
    assert same(before, weights(me))


@pytest.mark.parametrize("prediction", ["proto_all", "proto_own"])
def test_without_prototypes_the_head_predicts_and_later_the_last_received(prediction: str):
    me = tiny(1, seed=1).client(0)
    x, _ = me.train.take(slice(None))
    method = FedProto(prediction=prediction)
    answer(method, me, NONE)
    assert torch.equal(method.predict(me, None)(x), me.model(x))
    assert torch.equal(method.predict(me, NONE)(x), me.model(x))
    answer(method, me, FULL, number=2)
    scores = method.predict(me, None)(x)
    assert torch.allclose(scores, -(me.model.features(x)[:, None] - FULL.rows).norm(dim=2))


def test_a_class_without_prototype_never_wins_and_has_a_finite_score():
    me = tiny(1, seed=1).client(0)
    x, _ = me.train.take(slice(None))
    message = ClassVectors(torch.zeros(2, 3).double() + 1000, torch.tensor([0, 2]))
    scores = FedProto(prediction="proto_all").predict(me, message)(x)
    assert torch.isfinite(scores).all()
    assert (scores.argmax(1) != 1).all()


@pytest.mark.parametrize(
    ("keep_old", "known_classes"), [(True, [True, True, False]), (False, [False, True, False])]
)
def test_a_class_that_drops_out(keep_old: bool, known_classes: list[bool]):
    method, ctx = FedProto(keep_old=keep_old), context()
    both = Prototypes(torch.ones(2, 3).double(), torch.tensor([0, 1]))
    state = method.server(method.init_server(ctx), [update(both)], ctx)
    state = method.server(
        state, [update(Prototypes(torch.full((1, 3), 7.0).double(), torch.tensor([1])))], ctx
    )
    assert state.known.tolist() == known_classes
    assert state.rows[1].tolist() == [7.0] * 3


@pytest.mark.parametrize(("classes", "held_classes", "kib"), [(10, 2, 7.81), (100, 10, 39.06)])
def test_numbers_that_travel(classes: int, held_classes: int, kib: float):
    """Table 3 of FedGH counts the client's own classes both ways, without ids."""
    up = Prototypes(torch.zeros(held_classes, 500), torch.arange(held_classes))
    down = ClassVectors(torch.zeros(classes, 500))
    assert up.numel() == held_classes * 500 + held_classes
    assert down.numel() == classes * 500
    accounted = FedProto().paper_accounting(down, up)
    assert round(4 * (accounted.up + accounted.down) / 1024, 2) == kib
    assert round(20 * 4 * ClassVectors(torch.zeros(100, 512)).numel() / 2**20, 3) == 3.906


def test_the_accuracy_is_that_of_each_client_alone():
    """In published code right answers pile up from client to client."""
    recorder = Recorder()
    make_loop(FedProto(), tiny(3), rounds=1, callbacks=[recorder]).run()
    scores = [score.score for score in recorder.steps[0].scores]
    assert [score.samples for score in scores] == [9, 9, 9]
    assert recorder.steps[0].record.accuracy == pytest.approx(sum(s.correct / 9 for s in scores) / 3)


@pytest.mark.parametrize("prediction", ["head", "proto_all", "proto_own"])
def test_partial_participation_missing_classes_and_single_samples(prediction: str):
    fed = tiny(4, classes_of=[(0,), (1, 2), None], norm=True, sizes=(12, 1, 7))
    recorder = Recorder()
    make_loop(FedProto(prediction=prediction), fed, rounds=4, participation=0.5, callbacks=[recorder]).run()
    assert all(step.record.accuracy is not None for step in recorder.steps)
    assert torch.isfinite(recorder.end.state.rows).all()
