"""HeteroFL: slices and masked losses by hand, FedAvg as the case of one width, Bottleneck blocks included."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from potluck.core.errors import PotluckError
from potluck.core.method import Update
from potluck.core.model import tensors_of
from potluck.core.payload import PayloadError
from potluck.core.schema import check_payload
from potluck.core.task import ClientInfo, Context
from potluck.core.training import Training
from potluck.methods.fedavg import FedAvg
from potluck.methods.heterofl import HeteroFL, Slice, Widest, masked_loss
from potluck.models import build_model
from support.families import Narrow, Wide, population, wide
from support.tiny import Recorder, make_loop, points, tiny


def run(method, fed, **settings):
    recorder = Recorder()
    loop = make_loop(method, fed, callbacks=[recorder], **{"rounds": 2, **settings})
    loop.run()
    return recorder, loop


def same(state: dict, expected: dict) -> bool:
    return state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in state)


def full(value: float, *shape: int) -> torch.Tensor:
    return torch.full(shape, value, dtype=torch.float64)


def served(state: dict, slices: list[Slice], method: HeteroFL | None = None) -> dict:
    context = make_loop(HeteroFL(), wide(1.0)).server.context()
    updates = [Update(ClientInfo(number, "c", 1, "Wide"), payload) for number, payload in enumerate(slices)]
    return (method or HeteroFL()).server(Widest(state, {}), updates, context).weights


def test_scalars_are_averaged_over_their_holders():
    """A 4×4 weight; full-rate client all 4, half-rate client all 2: the corner is 3, the rest 4."""
    result = served({"w": full(0.0, 4, 4)}, [Slice({"w": full(4.0, 4, 4)}), Slice({"w": full(2.0, 2, 2)})])[
        "w"
    ]
    expected = full(4.0, 4, 4)
    expected[:2, :2] = 3.0
    assert torch.equal(result, expected)
    alone = served({"w": full(9.0, 4, 4)}, [Slice({"w": full(2.0, 2, 2)})])["w"]
    assert alone[2:].eq(9.0).all()  # nobody holds these
    assert alone[:2, :2].eq(2.0).all()


def test_output_rows_are_averaged_over_clients_that_have_the_class():
    state = {"head.weight": full(9.0, 3, 2), "head.bias": full(9.0, 3)}
    first_slice = Slice({"head.weight": full(1.0, 3, 2), "head.bias": full(1.0, 3)}, torch.tensor([0, 1]))
    second_slice = Slice({"head.weight": full(3.0, 3, 1), "head.bias": full(3.0, 3)}, torch.tensor([1]))
    result = served(state, [first_slice, second_slice])
    assert result["head.bias"].tolist() == [1.0, 2.0, 9.0]
    assert result["head.weight"].tolist() == [[1.0, 1.0], [2.0, 1.0], [9.0, 9.0]]


def test_an_answer_of_two_moves_its_own_rows_by_its_own_change():
    """Sent 1, 2, 4 and back with 3 in row 1, the only class held: 1 more, halved twice; statistics are the latest."""
    state = {"head.bias": full(5.0, 3), "norm.weight": full(0.0, 2)}
    sent = Slice({"head.bias": torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)})
    statistics = {"norm.running_mean": full(4.0, 2)}
    answer = Slice({"head.bias": full(3.0, 3)}, torch.tensor([1]), statistics)
    context = replace(make_loop(HeteroFL(), wide(1.0)).server.context(), cohort=2)
    before = Widest(state, {"norm.running_mean": full(0.0, 2)})
    update = Update(ClientInfo(0, "c", 1, "Wide"), answer, sent=sent)
    after = HeteroFL().server(before, [update], context)
    assert after.weights["head.bias"].tolist() == [5.0, 5.25, 5.0]
    assert after.statistics["norm.running_mean"].tolist() == [4.0, 4.0]


def test_masked_cross_entropy():
    """Scores (1, 2, 3), class 1 absent, y = 0: 2.169846; -inf instead of 0 would give 2.126928, no mask 2.407606."""
    scores = nn.Identity()
    x, y = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64), torch.tensor([0])
    value, label_loss = masked_loss(scores, x, y, torch.tensor([True, False, True]))
    assert value.item() == label_loss.item() == pytest.approx(2.169846, abs=1e-6)
    assert masked_loss(scores, x, y, torch.tensor([True] * 3)).objective.item() == pytest.approx(
        2.407606, abs=1e-6
    )


@pytest.mark.parametrize("mask", [True, False])
def test_at_full_rate_it_is_unweighted_fedavg_bit_for_bit(mask: bool):
    fed = wide(1.0, 1.0, 1.0, sizes=(12, 9, 6))
    heterofl, plain = (
        run(HeteroFL(mask=mask), fed)[0],
        run(FedAvg(aggregate="full", weight="uniform"), fed)[0],
    )
    assert same(heterofl.end.state.weights, plain.end.state["all"])


def test_every_tensor_of_a_bottleneck_network_is_sliced():
    """The published splitter knows conv1, conv2, shortcut and linear, and raises at conv3."""
    fed = wide(1.0, 0.5)
    recorder, _ = run(HeteroFL(), fed, rounds=1)
    (_, _, large), (_, _, small) = recorder.sent
    assert small.tensors["block.conv3.weight"].shape == (4, 1, 1, 1)
    for name, tensor in small.tensors.items():
        leading_indices = tuple(slice(size) for size in tensor.shape)
        assert torch.equal(tensor, large.tensors[name][leading_indices]), name
    narrow_conv, wide_conv = (update.payload.tensors["block.conv3.weight"] for _, update in recorder.updates)
    result = recorder.end.state.weights["block.conv3.weight"]
    assert torch.equal(result[:4, :1], (narrow_conv[:4, :1] + wide_conv) / 2)
    assert torch.equal(result[4:], narrow_conv[4:])


def test_absent_classes_get_no_gradient_and_keep_their_row():
    fed = wide(1.0, 0.5, classes_of=[(0, 1)])
    recorder, _ = run(HeteroFL(), fed, rounds=1)
    start, end = recorder.sent[0][2].tensors, recorder.end.state.weights
    for name in ("head.weight", "head.bias"):
        assert torch.equal(end[name][2], start[name][2])
        assert not torch.equal(end[name][:2], start[name][:2])
    assert [update.payload.classes.tolist() for _, update in recorder.updates] == [[0, 1], [0, 1]]


def test_the_slice_and_the_class_ids_travel():
    fed = wide(1.0, 0.5, classes_of=[(0, 1)])
    recorder, _ = run(HeteroFL(), fed, rounds=1)
    # stem 4·9+4; conv1 8, conv2 36, norm 4, conv3 16, shortcut 32; head 27. At half rate 2·9+2, 2+9+2+4+8, 15.
    widths = (40 + 96 + 27, 20 + 25 + 15)
    assert tuple(message.numel() for _, _, message in recorder.sent) == widths
    statistics = (2 * 2, 2 * 1)  # mean and variance of the norm's channels
    sent = [update.payload.numel() - 2 for _, update in recorder.updates]
    assert sent == [width + more for width, more in zip(widths, statistics, strict=True)]
    accounted = HeteroFL().paper_accounting(recorder.sent[1][2], recorder.updates[1][1].payload)
    assert (accounted.up, accounted.down) == (widths[1], widths[1])
    assert (
        run(HeteroFL(mask=False, gather=False), fed, rounds=1)[0].updates[0][1].payload.numel() == widths[0]
    )


@pytest.mark.parametrize(
    ("rate", "numbers"),
    [(1, 58_148_938), (0.5, 14_578_730), (0.25, 3_665_434), (0.125, 926_738), (0.0625, 236_878)],
)
def test_slices_of_the_papers_resnet152(rate: float, numbers: int):
    with torch.device("meta"):
        model = build_model(f"preresnet152@{rate}", (3, 32, 32), 10)
    assert Slice(tensors_of(model)).numel() == numbers  # static norms have no statistics to send


# -- testing ----------------------------------------------------------------------------------------------


def by_hand(network: nn.Module, x: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """A test pass with the norm's statistics taken from `data` in one batch."""
    network.block.bn.track_running_stats, network.block.bn.momentum = True, 1.0
    hidden = network.block.conv1(torch.relu(network.stem(data.reshape(-1, 1, 2, 2))))
    hidden_features = network.block.conv2(torch.relu(hidden))
    network.block.bn.running_mean = hidden_features.mean((0, 2, 3)).detach()
    network.block.bn.running_var = hidden_features.var((0, 2, 3)).detach()
    return network.eval()(x)


@pytest.mark.parametrize("received", [False, True])
def test_clients_are_tested_with_statistics_of_their_own_training_data(received: bool):
    fed = wide(1.0, 0.5)
    me, twin = fed.client(1), fed.client(1).model
    message = None
    if received:
        loop = make_loop(HeteroFL(), fed)
        message = HeteroFL().broadcast(loop.progress.state, me.info, loop.server.context())
        twin.load_state_dict(message.tensors)
    before = {name: tensor.clone() for name, tensor in me.model.state_dict().items()}
    predictor = HeteroFL().predict(me, message)
    x, _ = me.test.take(slice(0, 1))
    expected = by_hand(twin, x, me.train.take(slice(None))[0])
    assert torch.allclose(predictor(x), expected, atol=1e-12)  # one sample: no statistics of its own
    assert same(before, dict(me.model.state_dict()))
    assert me.model.block.bn.running_mean is None


def test_masked_tests_never_favour_an_absent_class_that_scores_above_zero():
    fed = wide(1.0, classes_of=[(0, 1)])
    me = fed.client(0)
    nn.init.constant_(me.model.head.bias, 50.0)
    x, _ = me.test.take(slice(None))
    scores = HeteroFL(mask_tests=True).predict(me, None)(x)
    assert scores[:, 2].eq(0).all()
    assert scores[:, :2].min() > 0
    assert HeteroFL().predict(me, None)(x)[:, 2].min() > 0


def test_the_global_model_is_the_widest_one():
    fed = wide(0.5, 1.0, public=points(10, 7))
    method = HeteroFL(gather=False)
    _, loop = run(method, fed, rounds=1)
    model = Wide(1.0).double()
    model.load_state_dict(loop.progress.state.weights)
    x, _ = fed.shared_test.take(slice(None))
    predictor = method.predict_server(loop.progress.state, loop.server.context())
    assert torch.allclose(predictor(x), by_hand(model, x, points(10, 7)[0]), atol=1e-12)


def test_without_public_data_the_global_model_uses_the_test_batch():
    fed = wide(0.5, 1.0)
    _, loop = run(HeteroFL(gather=False), fed, rounds=1)
    model = Wide(1.0).double().eval()
    model.load_state_dict(loop.progress.state.weights)
    x, _ = fed.shared_test.take(slice(None))
    predictor = HeteroFL().predict_server(loop.progress.state, loop.server.context())
    assert torch.equal(predictor(x), model(x))
    assert predictor(x[:1]).shape == (1, 3)


def test_on_a_shared_test_set_statistics_are_gathered_over_clients():
    """Two clients of one width: the norm's mean is the mean of what each measured on its own training data."""
    fed = wide(1.0, 1.0, classes_of=[(0,), (1, 2)])
    recorder, loop = run(HeteroFL(), fed, rounds=1)
    sent = [update.payload.statistics["block.bn.running_mean"] for _, update in recorder.updates]
    gathered = loop.progress.state.statistics["block.bn.running_mean"]
    assert not torch.allclose(sent[0], sent[1])
    assert torch.allclose(gathered, (sent[0] + sent[1]) / 2, atol=1e-12)
    me = fed.client(0)
    message = HeteroFL().broadcast(loop.progress.state, me.info, replace(loop.server.context(), testing=True))
    own = HeteroFL().predict(me, message)
    me.on_shared_test = True
    shared = HeteroFL().predict(me, message)
    assert torch.equal(shared.block.bn.running_mean, gathered)
    assert not torch.allclose(
        own.block.bn.running_mean, gathered
    )  # its own test data are like its training data
    assert torch.equal(
        HeteroFL().predict_server(loop.progress.state, loop.server.context()).block.bn.running_mean, gathered
    )


# -- dynamic widths ---------------------------------------------------------------------------------------


def test_dynamic_widths_are_drawn_per_client_and_round():
    fed = wide(1.0, 0.5)
    recorder, loop = run(HeteroFL(rates="dynamic"), fed, rounds=6)
    widths = [
        [m.tensors["stem.weight"].shape[0] for n, c, m in recorder.sent if c == client] for client in (0, 1)
    ]
    assert set(widths[0]) == set(widths[1]) == {2, 4}
    assert widths[0] != widths[1]
    for client in (0, 1):
        width = loop.fetch(client)["private"]["width"]
        assert width == {4: "Wide", 2: "Wide-2"}[widths[client][-1]]


def test_a_message_for_a_test_has_the_clients_own_width():
    """Drawn anew, tests would be of another width each time, and the best round a lucky draw."""
    fed = wide(1.0, 0.5)
    method = HeteroFL(rates="dynamic")
    loop = make_loop(method, fed, rounds=9)
    for number in range(1, 9):
        context = Context(fed.task, number, 9, 0, number, testing=True)
        widths = [
            method.broadcast(loop.progress.state, info, context).tensors["stem.weight"].shape[0]
            for info in fed.task.clients
        ]
        assert widths == [4, 2]


def test_a_client_is_tested_with_the_width_it_trained_last():
    fed = wide(1.0, 0.5)
    loop = make_loop(HeteroFL(), fed)
    foreign = HeteroFL().broadcast(loop.progress.state, fed.task.clients[1], loop.server.context())
    me = fed.client(0)
    before = {name: tensor.clone() for name, tensor in me.model.state_dict().items()}
    answer = HeteroFL().client(me, foreign)
    assert same(before, dict(me.model.state_dict()))  # its own network rests
    twin = Wide(0.5).double()
    twin.load_state_dict(answer.tensors)
    x, _ = me.test.take(slice(None))
    expected = by_hand(twin, x, me.train.take(slice(None))[0])
    assert torch.allclose(HeteroFL().predict(me, None)(x), expected, atol=1e-12)
    state = me.state()
    assert HeteroFL().predict(me, foreign)(x).shape == (9, 3)
    assert state.layout == me.state().layout
    again = fed.client(0)
    again.restore(state)
    assert torch.equal(HeteroFL().predict(again, None)(x), HeteroFL().predict(me, None)(x))


def test_only_widths_of_the_federation_are_accepted():
    fed = wide(1.0, 0.5)
    info = fed.task.clients[0]
    half = Slice(
        {name: torch.zeros(shape).double() for name, shape in fed.task.architectures["Wide-2"].shapes.items()}
    )
    check_payload(half, Slice, fed.task, info)
    odd = Slice({**half.tensors, "stem.bias": torch.zeros(3).double()})
    with pytest.raises(PayloadError, match="has shape"):
        check_payload(odd, Slice, fed.task, info)


# -- needs and corner cases -------------------------------------------------------------------------------


def test_unrelated_models_are_refused():
    with pytest.raises(PotluckError, match="nested width"):
        make_loop(HeteroFL(), population([Wide().double(), tiny(1).client(0).model]))


def test_width_one_single_samples_and_single_classes_are_survived():
    models = [Narrow(4).double(), Narrow(1).double(), Narrow(2).double(), Narrow(4).double()]
    fed = population(models, sizes=(1, 12, 5), classes_of=[(0,), None, (1,)])
    for rates in ("fix", "dynamic"):
        recorder, _ = run(HeteroFL(rates=rates), fed, rounds=3, participation=0.5)
        assert len(recorder.end.scores) == 4
        assert all(torch.isfinite(tensor).all() for tensor in recorder.end.state.weights.values())


def test_kept_optimisers_follow_each_width():
    fed = wide(1.0, 0.5, training=Training(epochs=1, batch_size=4, lr=0.1, momentum=0.9, keep_optimizer=True))
    recorder, loop = run(HeteroFL(rates="dynamic"), fed, rounds=5)
    assert set(loop.fetch(0)["optimizers"]) == {"Wide", "Wide-2"}
    for _, client, message in recorder.sent:
        assert any(
            not torch.equal(update.payload.tensors["head.bias"], message.tensors["head.bias"])
            for _, update in recorder.updates
            if update.client.index == client
        )
