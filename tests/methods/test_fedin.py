"""FedIN: its gradients by hand, its ablations as identities, and its store of features."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from potluck.core.errors import PotluckError
from potluck.core.method import Update
from potluck.core.model import tensors_of
from potluck.core.payload import PayloadError
from potluck.core.schema import check_payload
from potluck.core.task import ClientInfo
from potluck.core.training import Training
from potluck.kit import ALL, Weights
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedin import FedIN, Knowledge, alleviate
from potluck.methods.fedprox import FedProx
from potluck.methods.scaffold import Change, Scaffold, Start
from potluck.models import build_model, groups
from support.families import Deep, deep, population
from support.tiny import Recorder, make_loop, tiny

MIXED = ((1, 1), (2, 1), (2, 2))


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def run(method, fed=None, **settings):
    recorder = Recorder()
    fed = fed or deep(*MIXED, norm=True, sizes=(12, 9, 10))
    loop = make_loop(method, fed, callbacks=[recorder], **{"rounds": 3, **settings})
    loop.run()
    return recorder, loop


def same(state: dict, expected: dict) -> bool:
    return state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in state)


def joined(rule: str, features: tuple[float, ...], local: tuple[float, ...]) -> list[float]:
    (result,) = alleviate([vector(*features)], [vector(*local)], rule, "tensor")
    return result.tolist()


# -- gradient alleviation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "local", "eq13", "eq14"),
    [
        ((1, 0), (-1, 1), [0.5, 0.5], [0.5, 0.5]),  # both rules agree here by chance
        ((1, 0), (-2, 1), [0.2, 0.4], [0.0, 0.5]),
        ((1, 1), (1, 0), [1.0, 1.0], [1.5, 1.0]),  # no conflict: eq. 13 drops the local gradient
        ((3, 0), (-2, 0), [0.0, 0.0], [2.0, 0.0]),  # eq. 14 is infeasible: its product with (-2, 0) is -4
        ((3, 4), (0, 0), [3.0, 4.0], [3.0, 4.0]),  # no local gradient
    ],
)
def test_joint_gradients_by_hand(features, local, eq13, eq14):
    assert joined("eq13", features, local) == pytest.approx(eq13, abs=1e-15)
    assert joined("eq14", features, local) == pytest.approx(eq14, abs=1e-15)
    assert joined("sum", features, local) == [
        feature_gradient + local_gradient
        for feature_gradient, local_gradient in zip(features, local, strict=True)
    ]


def test_eq13_never_opposes_the_local_gradient_and_eq14_may():
    rng = torch.Generator().manual_seed(0)
    features, local = (torch.randn(200, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    exact = alleviate(list(features), list(local), "eq13", "tensor")
    assert all((z @ g).item() >= -1e-12 for z, g in zip(exact, local, strict=True))
    unchanged = [torch.equal(z, f) for z, f in zip(exact, features, strict=True)]
    assert unchanged == [(f @ g).item() >= 0 for f, g in zip(features, local, strict=True)]
    simple = alleviate(list(3 * features), list(local), "eq14", "tensor")
    assert min((z @ g).item() for z, g in zip(simple, local, strict=True)) < 0


def test_the_whole_middle_may_be_weighed_as_one_vector():
    """Products -2 and +3 add to 1: together there is no conflict, tensor by tensor there is one."""
    features, local = [vector(1.0), vector(1.0)], [vector(-2.0), vector(3.0)]
    assert [z.item() for z in alleviate(features, local, "eq13", "middle")] == [1.0, 1.0]
    assert [z.item() for z in alleviate(features, local, "eq13", "tensor")] == [0.0, 1.0]
    # Products -2 and 1: b = -1, a = 5, so Z = G_IN + G_local / 5.
    opposed = alleviate([vector(1.0), vector(1.0)], [vector(-2.0), vector(1.0)], "eq13", "middle")
    assert [z.item() for z in opposed] == pytest.approx([0.6, 1.2])


# -- one client -------------------------------------------------------------------------------------------


def one_client(method: FedIN, norm: bool = False, pairs: int = 3, **training):
    """A client, a message with features, and its gradients after one full-batch step of size one."""
    settings = Training(**{"epochs": 1, "batch_size": 0, "lr": 1.0, **training})
    fed = deep((2, 2), norm=norm, training=settings)
    me = fed.client(0)
    rng = torch.Generator().manual_seed(1)
    entering, leaving = (torch.rand(pairs, 6, generator=rng, dtype=torch.float64) for _ in range(2))
    tensors = {n: t.clone() for n, t in me.model.state_dict().items() if "tracked" not in n}
    answer = method.client(me, Knowledge(tensors, entering, leaving))
    steps = {name: tensors[name] - answer.weights[name] for name in tensors}
    return fed.client(0), (entering, leaving), steps, answer


def test_pairs_come_from_the_last_full_batch():
    """Twelve samples in batches of four: all three are full, and the third one is sent."""
    fed = deep((2, 2), sizes=(12,), training=Training(epochs=1, batch_size=4, lr=0.1))
    method, me, inputs, outputs = FedIN(), fed.client(0), [], []
    stages = me.model.stages
    stages[0].register_forward_pre_hook(lambda stage, arguments: inputs.append(arguments[0]))
    stages[method.cut - 1].register_forward_hook(
        lambda stage, arguments, out: outputs.append(out.detach().clone())
    )
    answer = method.client(me, Knowledge(tensors_of(me.model)))
    assert [len(batch) for batch in inputs] == [4, 4, 4]
    assert torch.equal(answer.entering, outputs[2])
    assert not torch.equal(answer.entering, outputs[0])


def gradients(me, entering, leaving):
    x, y = me.train.take(slice(None))
    model, names = me.model.train(), [name for name, _ in me.model.named_parameters()]
    loss = torch.nn.functional.cross_entropy(model(x), y)
    local = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    middle = {name: tensor for name, tensor in model.named_parameters() if name.startswith("layer")}
    loss = torch.nn.functional.mse_loss(model.layer2(model.layer1(entering)), leaving)
    return local, dict(zip(middle, torch.autograd.grad(loss, list(middle.values())), strict=True))


@pytest.mark.parametrize("outer", [0.5, 1.0])
def test_a_step_follows_eq14_inside_and_the_scaled_local_gradient_outside(outer: float):
    me, features, steps, _ = one_client(FedIN(outer_scale=outer))
    local, inner = gradients(me, *features)
    for name, gradient in local.items():
        expected = inner[name] + 0.5 * gradient if name in inner else outer * gradient
        assert torch.allclose(steps[name], expected, atol=1e-12), name


@pytest.mark.parametrize(("alleviation", "factor"), [("eq14", 0.5), ("eq13", 1.0), ("sum", 1.0)])
def test_only_eq14_halves_the_local_gradient_outside_of_the_middle(alleviation: str, factor: float):
    me, features, steps, _ = one_client(FedIN(alleviation=alleviation))
    local, inner = gradients(me, *features)
    for name in local.keys() - inner.keys():
        assert torch.allclose(steps[name], factor * local[name], atol=1e-12), name


@pytest.mark.parametrize("alleviation", ["eq14", "eq13", "sum"])
def test_a_stated_factor_acts_outside_of_the_middle_however_gradients_join(alleviation: str):
    me, features, steps, _ = one_client(FedIN(alleviation=alleviation, outer_scale=0.25))
    local, inner = gradients(me, *features)
    for name in local.keys() - inner.keys():
        assert torch.allclose(steps[name], 0.25 * local[name], atol=1e-12), name


def test_extractor_end_moves_the_cut():
    _, _, stem, up = one_client(FedIN())
    assert up.entering.shape == up.leaving.shape == (12, 6)
    me, features, late, _ = one_client(FedIN(extractor_end="layer1"))
    local, _ = gradients(me, *features)
    assert torch.allclose(late["layer1.0.fc.weight"], 0.5 * local["layer1.0.fc.weight"], atol=1e-12)
    assert not torch.allclose(stem["layer1.0.fc.weight"], late["layer1.0.fc.weight"])


def test_in_training_leaves_batch_norm_statistics_alone():
    _, _, with_features, _ = one_client(FedIN(), norm=True)
    assert "layer1.0.bn.running_mean" in with_features
    plain = deep((2, 2), norm=True, training=Training(epochs=1, batch_size=0)).client(0)
    x, _ = plain.train.take(slice(None))
    with plain.training_mode(plain.model):
        plain.model(x)
    # One local forward pass is all that may reach the statistics.
    for name in (name for name in with_features if "running" in name):
        start = torch.zeros_like(with_features[name]) + ("var" in name)
        expected = plain.model.state_dict()[name]
        assert torch.allclose(start - with_features[name], expected, atol=1e-12), name


def test_single_pair_with_batch_norm_trains():
    _, _, steps, _ = one_client(FedIN(), norm=True, pairs=1)
    assert all(torch.isfinite(tensor).all() for tensor in steps.values())


def test_the_pairs_sent_are_those_of_the_last_full_minibatch():
    me, _, _, answer = one_client(FedIN(), batch_size=5, lr=1e-12)
    entering = me.model.stem(me.train.take(slice(None))[0])
    assert answer.entering.shape == (5, 6)  # 12 samples in batches of five: not the two that are left
    distances = torch.cdist(answer.entering, entering).min(dim=1).values
    assert distances.max() < 1e-6
    assert torch.allclose(me.model.layer2(me.model.layer1(answer.entering)), answer.leaving, atol=1e-6)
    assert not answer.entering.requires_grad


# -- ablations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_without_in_it_is_fedprox_bit_for_bit(weight: str):
    fedin = run(FedIN(intermediate=False, mu=0.3, weight=weight, common_start=True))[0]
    prox = run(FedProx(aggregate="layerwise", weight=weight, mu=0.3))[0]
    assert same(fedin.end.state.weights[ALL], prox.end.state[ALL])
    assert [m.numel() for _, _, m in fedin.sent] == [m.numel() for _, _, m in prox.sent]
    assert not same(
        run(FedIN(mu=0.3, weight=weight, common_start=True))[0].end.state.weights[ALL], prox.end.state[ALL]
    )


def test_the_first_round_is_fedprox_too():
    fedin, prox = (
        run(FedIN(common_start=True), rounds=1)[0],
        run(FedProx(aggregate="layerwise", weight="uniform"), rounds=1)[0],
    )
    assert same(fedin.end.state.weights[ALL], prox.end.state[ALL])
    assert all(message.entering is None for _, _, message in fedin.sent)


def test_a_client_trains_its_own_weights_until_it_has_received_some():
    """ "No data is received in the initial training process"; a name that nobody has sent is never sent on."""
    fed = deep((1, 1), (2, 1))
    own = {name: tensor.clone() for name, tensor in fed.client(0).model.named_parameters()}
    recorder, loop = run(FedIN(mu=0.0), fed, rounds=1)
    assert all(not message.weights for _, _, message in recorder.sent)
    small = recorder.updates[0][1].payload.weights
    assert all(
        (small[name] - own[name]).norm() < 0.5 * own[name].norm() for name in own if own[name].dim() > 1
    )
    only_small = FedIN().server(
        FedIN().init_server(loop.server.context()), [recorder.updates[0][1]], loop.server.context()
    )
    deeper = FedIN().broadcast(only_small, fed.task.clients[1], loop.server.context()).weights
    assert deeper.keys() == small.keys()


def test_without_prox():
    assert not same(run(FedIN(mu=0.0))[0].end.state.weights[ALL], run(FedIN())[0].end.state.weights[ALL])


def test_without_opt_trains_locally_first_and_then_only_the_middle():
    me, (entering, leaving), steps, _ = one_client(FedIN(alleviation="none", in_steps=1))
    local, _ = gradients(me, entering, leaving)
    with torch.no_grad():
        for name, parameter in me.model.named_parameters():
            parameter -= local[name]
    _, inner = gradients(me, entering, leaving)
    for name, gradient in local.items():
        assert torch.allclose(steps[name], gradient + inner.get(name, 0.0), atol=1e-12), name
    default = one_client(FedIN(alleviation="none"), epochs=2)[2]
    assert same(default, one_client(FedIN(alleviation="none", in_steps=2), epochs=2)[2])


@pytest.mark.parametrize("count", [0, 3])
def test_steps_on_features_are_as_many_as_asked_for(count: int):
    me, (entering, leaving), steps, _ = one_client(FedIN(alleviation="none", mu=0.0, in_steps=count))
    start = {name: tensor.detach().clone() for name, tensor in me.model.named_parameters()}
    moves = [gradients(me, entering, leaving)[0]]
    for number in range(count + 1):
        with torch.no_grad():
            for name, parameter in me.model.named_parameters():
                parameter -= moves[-1].get(name, 0.0)
        if number < count:
            moves.append(gradients(me, entering, leaving)[1])
    for name, parameter in me.model.named_parameters():
        assert torch.allclose(steps[name], start[name] - parameter, atol=1e-12), name


# -- the store --------------------------------------------------------------------------------------------


def test_all_clients_get_one_batch_drawn_from_all_pairs():
    recorder, _ = run(FedIN(in_batch=5), rounds=2)
    sent = [message.entering for number, _, message in recorder.sent if number == 2]
    assert all(torch.equal(sent[0], pairs) for pairs in sent)
    store = torch.cat([update.payload.entering for number, update in recorder.updates if number == 1])
    assert len(sent[0]) == 5
    rows = [int((store == row).all(dim=1).nonzero()[0]) for row in sent[0]]
    assert len(set(rows)) == 5


def test_own_pairs_can_be_left_out():
    recorder, _ = run(FedIN(in_batch=99, exclude_own=True), rounds=2)
    own = {update.client.index: update.payload.leaving for number, update in recorder.updates if number == 1}
    for client, message in ((client, message) for number, client, message in recorder.sent if number == 2):
        other_pairs = torch.cat([rows for index, rows in own.items() if index != client])
        assert torch.equal(message.leaving.sum(1).sort().values, other_pairs.sum(1).sort().values)
    alone, _ = run(FedIN(exclude_own=True), deep((1, 1)), rounds=2)
    assert all(message.entering is None for _, _, message in alone.sent)


def test_the_store_drops_its_oldest_pairs():
    recorder, loop = run(FedIN(max_pairs=6), rounds=2)
    last = [update for number, update in recorder.updates if number == 2]
    newest = torch.cat([update.payload.leaving for update in last])[-6:]
    assert torch.equal(loop.progress.state.leaving, newest)
    assert loop.progress.state.owners.tolist()[-1] == last[-1].client.index
    assert len(run(FedIN())[1].progress.state.owners) == 3 * (
        4 + 4 + 4
    )  # full batches of 12, 9 and 10 samples


def test_an_answer_that_counted_before_adds_no_pairs_again():
    recorder, loop = run(FedIN(), rounds=1)
    state, ctx = loop.progress.state, loop.server.context()
    updates = [update for _, update in recorder.updates]
    repeated = [replace(update, fresh=number == 0) for number, update in enumerate(updates)]
    after = FedIN().server(state, repeated, replace(ctx, cohort=3))
    assert len(after.owners) == len(state.owners) + len(updates[0].payload.entering)


def test_names_once_sent_stay_known():
    """In the second step only the shallow client answers; the deep one still gets all that it sent."""
    recorder, loop = run(FedIN(), deep((1, 1), (2, 1)), rounds=1)
    shallow, own = recorder.updates[0][1], recorder.updates[1][1].payload.weights
    ctx = loop.server.context()
    after = FedIN().server(loop.progress.state, [shallow], ctx)
    assert FedIN().broadcast(after, loop.task.clients[1], ctx).weights.keys() == own.keys()


def test_pairs_of_another_shape_are_not_stored():
    _, loop = run(FedIN(), rounds=1)
    state, info = loop.progress.state, loop.task.clients[0]
    weights = FedIN().broadcast(state, info, loop.server.context()).weights
    odd = Knowledge(weights, torch.zeros(2, 5, dtype=torch.float64), torch.zeros(2, 6, dtype=torch.float64))
    check_payload(odd, Knowledge, loop.task, info)
    after = FedIN().server(state, [Update(info, odd)], loop.server.context())
    assert len(after.owners) == len(state.owners)
    uneven = Knowledge(
        weights, torch.zeros(2, 6, dtype=torch.float64), torch.zeros(3, 6, dtype=torch.float64)
    )
    with pytest.raises(PayloadError, match="rows"):
        check_payload(uneven, Knowledge, loop.task, info)


# -- what travels, needs and corner cases -----------------------------------------------------------------


def test_weights_and_pairs_travel():
    """Stem 30, blocks 42 + 12 with norm, head 21, statistics 12 per block; pairs of 6 + 6 numbers."""
    recorder, _ = run(FedIN(in_batch=4), deep((1, 1), (2, 1), norm=True), rounds=2)
    small, large = 30 + 2 * 54 + 21, 30 + 3 * 54 + 21
    sent = {(number, client): message for number, client, message in recorder.sent}
    assert sent[1, 0].numel() == 0  # a client begins with its own weights
    assert sent[2, 1].numel() == large + 36 + 4 * 12
    assert recorder.updates[1][1].payload.numel() == large + 36 + 4 * 12
    accounted = FedIN().paper_accounting(sent[2, 0], recorder.updates[0][1].payload)
    assert (accounted.up, accounted.down) == (small + 48, small + 48)


def test_the_papers_overhead_table():
    """Table 6: 12.28 M parameters on average over the five ResNets, 12.35 M with one batch of 16 pairs."""
    learned, sent, doubled = [], [], []
    for name in groups["resnet5"]:
        with torch.device("meta"):
            model = build_model(name, (3, 32, 32), 10).eval()
            entering = model.stages[0](torch.empty(16, 3, 32, 32))
            leaving = nn.Sequential(*model.stages[1:])(entering)
        weights = tensors_of(model)
        message = Knowledge(weights, entering, leaving)
        accounted = FedIN().paper_accounting(message, message)
        assert message.numel() - Weights(weights).numel() == 73_728
        assert accounted.up == accounted.down
        sent.append(accounted.up)
        learned.append(FedAvg().paper_accounting(Weights(weights), Weights(weights)).up)
        control = {name: tensor for name, tensor in weights.items() if "running" not in name}
        doubled.append(Scaffold().paper_accounting(Start(weights, control), Change(weights, control)).up)
    assert round(sum(learned) / 5) == 12_288_023
    assert round(sum(sent) / 5) == 12_288_023 + 73_728
    assert doubled == [2 * numbers for numbers in learned]


def test_needs_are_said_before_training():
    with pytest.raises(PotluckError, match="has no stages"):
        make_loop(FedIN(aggregate="same_arch"), tiny(2))
    short = Deep((1, 1)).double()
    short.__class__ = type("Short", (Deep,), {"stages": property(lambda self: (self.stem, self.layer1))})
    with pytest.raises(PotluckError, match="extractor_end 'layer1'"):
        make_loop(FedIN(extractor_end="layer1", aggregate="full"), population([short]))


def test_same_arch_sharing_serves_unrelated_depths():
    recorder, _ = run(FedIN(aggregate="same_arch"), deep(*MIXED, (1, 1)), rounds=2)
    assert len(recorder.end.state.weights) == 3


def test_newcomers_single_samples_and_single_classes_are_survived():
    fed = deep(*MIXED, (1, 1), norm=True, sizes=(1, 12, 5), classes_of=[(0,), None, (1, 2)])
    recorder, _ = run(FedIN(), fed, rounds=4, participation=0.5)
    assert len(recorder.end.scores) == 4


def test_knowledge_of_an_unknown_client_is_rejected():
    fed = deep((1, 1))
    info = ClientInfo(0, "c", 1, fed.task.clients[0].architecture)
    with pytest.raises(PayloadError, match="unknown tensor"):
        check_payload(Knowledge({"layer9.w": torch.zeros(1)}), Knowledge, fed.task, info)
