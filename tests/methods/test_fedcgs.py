"""FedCGS: sums that add up, the classifier made of them, one message per client."""

import math

import pytest
import torch

from potluck.core.errors import PotluckError
from potluck.core.method import Update
from potluck.core.payload import PayloadError
from potluck.core.schema import check_payload
from potluck.core.training import Training
from potluck.federation.members import Member, federate
from potluck.methods.fedcgs import (
    Classifier,
    FedCGS,
    Statistics,
    discriminant,
    feature_sums,
    oas_shrinkage,
    with_prior,
    within_class_covariance,
)
from potluck.testing import check_method
from potluck.wire.jobs import Answer, Job
from potluck.worker.worker import Worker
from support.tiny import Net, Recorder, answer, context, make_loop, points, tiny

HEAD = Training(train="head", epochs=1, batch_size=4)


def sums_of(rows: list[list[float]], labels: list[int], classes: int) -> dict[str, torch.Tensor]:
    x, y = torch.tensor(rows).double(), torch.tensor(labels)
    triangle = tuple(torch.triu_indices(x.shape[1], x.shape[1]))
    counts = torch.bincount(y, minlength=classes).double()
    sums = torch.zeros(classes, x.shape[1]).double().index_add_(0, y, x)
    return {"counts": counts, "sums": sums, "products": (x.T @ x)[triangle]}


def test_classifier_by_hand():
    # Means (1, 0) and (3, 0); deviations ±1 in each feature: scatter 2·I per class, over 8 - 2 degrees of freedom.
    rows = [[2.0, 0], [0, 0], [1, 1], [1, -1], [4, 0], [2, 0], [3, 1], [3, -1]]
    group = sums_of(rows, [0, 0, 0, 0, 1, 1, 1, 1], 2)
    means = group["sums"] / 4
    covariance, freedom = within_class_covariance(group["counts"], means, group["products"])
    assert freedom == 6
    assert torch.allclose(covariance, torch.eye(2).double() * 4 / 6)
    head = discriminant(group, 0.0, torch.float64)
    assert torch.allclose(head["weight"], torch.tensor([[1.5, 0], [4.5, 0]]).double(), rtol=1e-5)
    assert torch.allclose(head["bias"], torch.tensor([-0.75, -6.75]).double(), rtol=1e-5)
    scores = torch.tensor([[2.0, 5.0]]).double() @ head["weight"].T + head["bias"]
    assert float(scores[0, 0]) == pytest.approx(float(scores[0, 1]))  # halfway between the means


def test_shrinkage_by_hand():
    covariance = torch.diag(torch.tensor([3.0, 1.0])).double()  # tr 4, tr of square 10, p 2
    assert oas_shrinkage(covariance, 9.0) == pytest.approx(16 / (9 * (10 - 8)))
    assert oas_shrinkage(torch.eye(2).double(), 9.0) == 1.0


def test_prior_counts_every_class_once_more():
    head = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}
    bias = with_prior(head, torch.tensor([5, 0, 1]))["bias"]
    assert bias.tolist() == pytest.approx([math.log(6 / 9), math.log(1 / 9), math.log(2 / 9)], rel=1e-5)


def test_sums_of_clients_give_the_classifier_of_all_rows():
    fed = tiny(3, hidden=(5,), training=HEAD)
    method, ctx = FedCGS(), context(fed)
    shared = fed.client(0).model.body
    clients = [fed.client(index) for index in range(3)]
    for me in clients:
        me.model.body.load_state_dict(shared.state_dict())
    state = method.init_server(ctx)
    for me in clients:  # one at a time, as in an asynchronous run
        payload = answer(method, me, method.broadcast(state, me.info, ctx))
        check_payload(payload, Statistics, fed.task, me.info)
        assert payload.numel() == 3 + 3 * 3 + 6

        state = method.server(state, [Update(me.info, payload)], ctx)
    rows = [me.model.body(x) for me in clients for x in [me.train.take(slice(None))[0]]]
    labels = torch.cat([me.train.labels for me in clients])
    group = sums_of(torch.cat(rows).tolist(), labels.tolist(), 3)
    (name,) = state.groups
    for key, value in group.items():
        assert torch.allclose(state.groups[name][key], value, atol=1e-9)
    expected = discriminant(group, None, torch.float64)
    assert torch.allclose(state.heads[name]["weight"], expected["weight"], rtol=1e-6)


def test_sums_are_of_the_extractor_that_was_sent():
    """Two clients begin with different weights; the second sums the features of the first one's extractor."""
    fed, method = tiny(2, hidden=(5,)), FedCGS()
    me, ctx = fed.client(1), context(fed)
    message = method.broadcast(method.init_server(ctx), me.info, ctx)
    x, labels = me.train.take(slice(None))[0], me.train.labels
    own = me.model.features(x).detach()
    payload = answer(method, me, message)
    sent = fed.client(0).model
    sent.load_state_dict(message.extractor, strict=False)
    features = sent.features(x).detach()
    assert not torch.allclose(features, own, atol=1e-3)
    expected = torch.zeros(3, 3).double().index_add_(0, labels, features)
    assert torch.allclose(payload.sums, expected, atol=1e-12)


def test_every_client_sends_once_and_uses_the_common_classifier_from_the_second_round():
    fed, recorder = tiny(4, training=HEAD), Recorder()
    make_loop(FedCGS(), fed, rounds=3, callbacks=[recorder]).run()
    sent = [step.record.floats_up for step in recorder.steps]
    assert sent[0] == 4 * (3 + 9 + 6)
    assert sent[1:] == [0, 0]
    assert set(recorder.end.state.received.values()) == {1}
    assert len(recorder.end.state.heads) == 2  # one classifier per architecture
    fitted = recorder.end.state.heads[fed.task.clients[0].architecture]["weight"]
    assert float(fitted.abs().sum()) > 0


def test_repeated_sums_do_not_count_twice():
    fed = tiny(1, training=HEAD)
    method, ctx, me = FedCGS(), context(fed), fed.client(0)

    state = method.init_server(ctx)
    payload = answer(method, me, method.broadcast(state, me.info, ctx))
    state = method.server(state, [Update(me.info, payload)], ctx)
    again = method.server(state, [Update(me.info, payload)], ctx)
    assert float(again.groups[me.info.architecture]["counts"].sum()) == len(me.train)
    assert method.broadcast(again, me.info, ctx).send == 0
    assert answer(method, me, method.broadcast(again, me.info, ctx)).numel() == 0


def test_prior_of_the_client_and_of_all():
    fed = tiny(2, hidden=(5,), classes_of=[(0,), (0, 1, 2)], training=HEAD)
    ctx = context(fed)
    me = fed.client(0)
    group = feature_sums(me)
    message = Classifier({}, 0, torch.tensor([4, 4, 4]), discriminant(group, None, torch.float64))
    x = me.train.take(slice(None))[0]
    own, uniform = FedCGS().predict(me, message)(x), FedCGS(prior="uniform").predict(me, message)(x)
    difference = (own - uniform)[0]
    assert difference.tolist() == pytest.approx([math.log(13 / 15), math.log(1 / 15), math.log(1 / 15)])
    every = FedCGS(prior="all").predict(me, message)(x)
    assert torch.allclose((every - uniform), torch.full((1, 3), math.log(1 / 3)).double())
    me.on_shared_test = True
    assert torch.allclose(FedCGS().predict(me, message)(x), every)
    assert ctx.round == 1


def test_training_does_not_depend_on_the_test_before_it():
    fed = tiny(1, classes_of=[(0, 1)], training=HEAD)
    method, worker = FedCGS(), Worker(FedCGS(), fed.client)
    ctx = context(fed)
    message = method.broadcast(method.init_server(ctx), fed.task.clients[0], ctx)
    answer = worker.run(Job(1, "evaluate", 0, 0, round=1, rounds=1, message=message, tests=("own", "shared")))
    assert isinstance(answer, Answer)
    assert set(answer.scores) == {"own", "shared"}
    assert not worker.client(0).on_shared_test


def test_a_class_without_samples_keeps_the_scores_finite():
    group = sums_of([[1.0, 2.0], [2.0, 1.0]], [0, 0], 3)
    head = discriminant(group, None, torch.float32)
    assert all(torch.isfinite(tensor).all() for tensor in head.values())


def test_wrong_sizes_are_refused():
    fed = tiny(1, training=HEAD)
    me = fed.client(0)
    good = answer(FedCGS(), me, FedCGS().broadcast(FedCGS().init_server(context(fed)), me.info, context(fed)))
    with pytest.raises(PayloadError, match="pairs of features"):
        check_payload(Statistics(good.counts, good.sums, good.products[1:]), Statistics, fed.task, me.info)
    with pytest.raises(PayloadError, match="or nothing"):
        check_payload(Statistics(good.counts), Statistics, fed.task, me.info)
    wide = torch.zeros(3, 4, dtype=torch.float64)
    with pytest.raises(PayloadError, match="features, expected 3"):
        check_payload(Statistics(good.counts, wide, good.products), Statistics, fed.task, me.info)


def test_heads_without_bias_are_refused():
    net = Net()
    net.head = torch.nn.Linear(3, 3, bias=False)
    fed = federate([Member(net.double(), points(6, 0))], num_classes=3)
    with pytest.raises(PotluckError, match="needs a bias in the head"):
        FedCGS().init_server(context(fed))


def test_contract():
    check_method(FedCGS())


def test_the_server_has_a_model_where_all_clients_have_one_architecture():
    for hidden, has_one in (((5,), True), ((5, 7), False)):
        fed, recorder = tiny(2, hidden=hidden), Recorder()
        make_loop(FedCGS(), fed, rounds=1, callbacks=[recorder]).run()
        assert (FedCGS().predict_server(recorder.end.state, context(fed)) is not None) == has_one


def test_a_client_keeps_the_classifier_that_it_received():
    fed, recorder = tiny(2, hidden=(5,)), Recorder()
    make_loop(FedCGS(), fed, rounds=1, callbacks=[recorder]).run()
    me, method = fed.client(0), FedCGS()
    message = method.broadcast(recorder.end.state, me.info, context(fed))
    x = me.test.take(slice(None))[0]
    assert not torch.allclose(me.model(x), method.predict(me, message)(x))
    answer(method, me, message)
    assert torch.equal(me.model(x), method.predict(me, message)(x))
