"""FedL2G: the exact gradient of the guiding vectors, and everything around it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, mse_loss

from potluck.core.model import ClientModel
from potluck.core.random import seeded
from potluck.core.training import Training
from potluck.federation.federation import Member
from potluck.federation.members import federate
from potluck.methods import fedl2g
from potluck.methods.fedl2g import (
    FeatureGradients,
    FedL2GFeatures,
    FedL2GLogits,
    Guides,
    LogitGradients,
    guide_features,
    guide_gradient,
    guide_logits,
    guided_loss,
    pseudo_step,
)
from potluck.models.registry import build_model
from support.tiny import Net, Recorder, answer, context, make_loop, points, same, tiny, update, weights

BOTH = pytest.mark.parametrize("kind", [FedL2GLogits, FedL2GFeatures])
SPACES = pytest.mark.parametrize("outputs", [guide_logits, guide_features])
NORM = pytest.mark.parametrize("norm", [False, True])


def gradients(*sent: tuple[Tensor, Tensor]) -> list:
    """Answers of as many clients."""
    return [update(LogitGradients(rows, labels), index) for index, (rows, labels) in enumerate(sent)]


class Straight(ClientModel):
    """o = W x, W = 0 of shape 2×1: the smallest network of the worked example."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.head.weight)
        self.feature_dim = 1

    def features(self, x: Tensor) -> Tensor:
        return x


def sample(value: float, label: int) -> tuple[Tensor, Tensor]:
    return torch.tensor([[value]], dtype=torch.float64), torch.tensor([label])


def problem(norm: bool) -> tuple[Net, Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A network, vectors, a study batch of classes 0 and 2 only, and a quiz batch."""
    torch.manual_seed(3)
    net = Net(hidden=8, norm=norm).double()
    return net, torch.randn(3, 3).double(), points(6, 1, only=(0, 2)), points(5, 2)


def quiz_loss(
    net: Net, outputs: object, guides: Tensor, study: tuple, quiz: tuple, lr: float, weight: float = 1.0
) -> Tensor:
    """CE at the pseudo-trained weights, in plain torch and differentiable twice."""
    named = dict(net.named_parameters())
    start = {name: tensor.detach().clone() for name, tensor in net.named_buffers()}

    def scores(parameters: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        buffers = {name: tensor.clone() for name, tensor in start.items()}
        z = functional_call(
            net.body, {k[5:]: v for k, v in {**parameters, **buffers}.items() if k[:5] == "body."}, x
        )
        o = functional_call(net.head, {k[5:]: v for k, v in parameters.items() if k[:5] == "head."}, z)
        return (o if outputs is guide_logits else z), o

    net.train()
    u, o = scores(named, study[0])
    loss = cross_entropy(o, study[1]) + weight * mse_loss(u, guides[study[1]])
    steps = torch.autograd.grad(loss, list(named.values()), create_graph=True)
    pseudo = {name: p - lr * step for (name, p), step in zip(named.items(), steps, strict=True)}
    result = cross_entropy(scores(pseudo, quiz[0])[1], quiz[1])
    net.eval()
    return result


def test_the_worked_example():
    """∇θ = (−1.5, 0.5), θ' = (0.15, −0.05), quiz loss 0.798139."""
    guides = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    pi = guide_gradient(Straight(), guide_logits, guides, sample(1.0, 0), sample(1.0, 1), 0.1)
    assert pi[0].tolist() == pytest.approx([0.0549834, -0.0549834], abs=1e-7)
    assert pi[1].tolist() == [0.0, 0.0]
    moved = FedL2GLogits(server_lr=0.1).move(guides, gradients((pi[:1], torch.tensor([0]))), context())
    assert moved[0].tolist() == pytest.approx([0.994502, 0.005498], abs=1e-6)
    assert moved[1].tolist() == [0.0, 0.0]


def test_the_pseudo_step_of_the_worked_example():
    guides = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    net = Straight()
    parameters = {"head.weight": net.head.weight.detach()}
    pseudo = pseudo_step(net, parameters, guide_logits, guides, sample(1.0, 0), 0.1)
    assert pseudo["head.weight"].flatten().tolist() == pytest.approx([0.15, -0.05])
    quiz = functional_call(net, pseudo, sample(1.0, 1)[0])
    assert cross_entropy(quiz, torch.tensor([1])).item() == pytest.approx(0.798139, abs=1e-6)
    assert not net.head.weight.any()


@SPACES
@NORM
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_gradient_equals_double_backward(outputs: object, norm: bool, weight: float):
    net, guides, study, quiz = problem(norm)
    pi = guide_gradient(net, outputs, guides, study, quiz, 0.3, weight)
    leaf = guides.clone().requires_grad_()
    exact = torch.autograd.grad(quiz_loss(net, outputs, leaf, study, quiz, 0.3, weight), leaf)[0]
    assert exact.abs().max() > 1e-4
    assert torch.allclose(pi, exact, rtol=1e-10, atol=1e-15)


@SPACES
@NORM
def test_the_gradient_equals_a_central_difference(outputs: object, norm: bool):
    net, guides, study, quiz = problem(norm)
    pi = guide_gradient(net, outputs, guides, study, quiz, 0.3)
    step = 1e-4
    for row, column in [(0, 0), (0, 2), (2, 1), (1, 1)]:
        values = []
        for sign in (1, -1):
            moved = guides.clone()
            moved[row, column] += sign * step
            values.append(quiz_loss(net, outputs, moved, study, quiz, 0.3).item())
        slope = (values[0] - values[1]) / (2 * step)
        assert pi[row, column].item() == pytest.approx(slope, rel=1e-6, abs=1e-11)


@SPACES
@NORM
def test_looking_changes_nothing_not_even_running_statistics(outputs: object, norm: bool):
    net, guides, study, quiz = problem(norm)
    net.eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    tracked = [m.track_running_stats for m in net.modules() if isinstance(m, nn.BatchNorm1d)]
    guide_gradient(net, outputs, guides, study, quiz, 0.3)
    assert same(before, net.state_dict())
    assert tracked == [m.track_running_stats for m in net.modules() if isinstance(m, nn.BatchNorm1d)]
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not any(module.training for module in net.modules())


def test_the_weight_counts_in_training_as_well():
    """W = 0, x = 1, y = 0, v = (1, 0): cross-entropy log 2, and 0.5 from the vector."""
    guides = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    for weight in (1.0, 0.1):
        loss = guided_loss(Straight(), *sample(1.0, 0), guides, guide_logits, weight).objective
        assert loss.item() == pytest.approx(math.log(2) + 0.5 * weight)


class Recurrent(ClientModel):
    """A recurrent network, whose fused layer has no derivative in forward mode in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 4, batch_first=True)
        self.head = nn.Linear(4, 3)
        self.feature_dim = 4

    def features(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0].mean(1)


@SPACES
def test_recurrent_networks_train_equally_in_fedl2g(outputs: object):
    """In float64 forward mode exists and is compared with; in float32 torch's fused layer lacks it."""
    torch.manual_seed(5)
    net, guides = Recurrent().double(), torch.randn(3, 3 if outputs is guide_logits else 4).double()
    study = torch.randn(6, 5, 2).double(), torch.tensor([0, 2, 0, 2, 0, 2])
    quiz = torch.randn(5, 5, 2).double(), torch.tensor([0, 1, 2, 0, 1])
    exact = guide_gradient(net, outputs, guides, study, quiz, 0.3)
    assert exact.abs().max() > 1e-4
    single = [(x.float(), y) for x, y in (study, quiz)]
    pi = guide_gradient(net.float(), outputs, guides.float(), *single, 0.3)
    assert torch.allclose(pi.double(), exact, rtol=1e-3, atol=1e-6)


@SPACES
@pytest.mark.parametrize("name", ["text-transformer", "vit-tiny"])
def test_transformers_train_equally_in_fedl2g(name: str, outputs: object):
    """Torch's fused attention has no derivative in forward mode and no second one; slopes need neither."""
    words = name == "text-transformer"
    shape = (6,) if words else (1, 8, 8)
    with seeded(3, "transformer"):
        net = build_model(name, shape, 3, vocabulary=9).double()
        guides = torch.randn(3, 3 if outputs is guide_logits else net.feature_dim, dtype=torch.float64)
        x = torch.randint(1, 9, (7, *shape))
        x = x if words else x.double()
    study, quiz = (x[:4], torch.tensor([0, 2, 0, 2])), (x[4:], torch.tensor([0, 1, 2]))
    pi = guide_gradient(net, outputs, guides, study, quiz, 0.3)
    assert pi.any(dim=1).tolist() == [True, False, True]
    parameters = {key: value.detach() for key, value in net.named_parameters()}

    def train_on(vectors: Tensor) -> Tensor:
        moved = pseudo_step(net, parameters, outputs, vectors, study, 0.3)
        return cross_entropy(functional_call(net, moved, quiz[0]), quiz[1])

    ahead = torch.randn(guides.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slope = (train_on(guides + 1e-4 * ahead) - train_on(guides - 1e-4 * ahead)).item() / 2e-4
    assert abs(slope) > 1e-5
    assert (pi * ahead).sum().item() == pytest.approx(slope, rel=1e-5)


@SPACES
def test_two_products_in_reverse_mode_equal_one_in_forward_mode(outputs: object, monkeypatch: Any):
    net, guides, study, quiz = problem(norm=True)
    forward = guide_gradient(net, outputs, guides, study, quiz, 0.3)

    def lacking(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(fedl2g, "jvp", lacking)
    assert torch.allclose(
        guide_gradient(net, outputs, guides, study, quiz, 0.3), forward, rtol=1e-12, atol=1e-16
    )


def test_rows_are_zero_exactly_for_classes_outside_the_study_batch():
    net, guides, study, quiz = problem(norm=False)
    pi = guide_gradient(net, guide_logits, guides, study, quiz, 0.1)
    assert pi.any(dim=1).tolist() == [True, False, True]


def test_a_batch_of_one_uses_running_statistics():
    net, guides, study, quiz = problem(norm=True)
    pi = guide_gradient(net, guide_logits, guides, (study[0][:1], study[1][:1]), quiz, 0.1)
    assert torch.isfinite(pi).all()
    assert pi.any()


@pytest.mark.parametrize(("divide_by", "second"), [("senders", [2.0, 2.0]), ("participants", [1.0, 1.0])])
def test_gradients_are_averaged_over_senders_or_participants(divide_by: str, second: list[float]):
    sent = [
        (torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([0, 1])),
        (torch.tensor([[3.0, 1.0]]), torch.tensor([0])),
    ]
    start = torch.zeros(3, 2)
    moved = FedL2GLogits(server_lr=1.0, divide_by=divide_by).move(start, gradients(*sent), context())
    assert (-moved[0]).tolist() == [2.0, 1.0]
    assert (-moved[1]).tolist() == second
    assert moved[2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("divide_by", ["senders", "participants"])
def test_partial_cohort_moves_guiding_vectors_by_its_share(divide_by: str):
    """Of a cohort of four one stale answer came, 8 by half; another counted before: 4 is a term of a mean over four."""
    rows, label = torch.tensor([[8.0, 0.0]]), torch.tensor([0])
    stale, before = gradients((rows, label), (torch.tensor([[100.0, 100.0]]), label))
    sent = [replace(stale, weight=0.5, staleness=1), replace(before, fresh=False)]
    method = FedL2GLogits(server_lr=1.0, divide_by=divide_by)
    moved = method.move(torch.zeros(3, 2), sent, replace(context(), cohort=4))
    assert (-moved[0]).tolist() == [1.0, 0.0]


@BOTH
def test_payload_is_the_gradient_at_the_configured_weight(kind: type):
    """In the warm-up nothing trains, and a full batch is the whole study set."""
    me = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.3)).client(0)
    method = kind(guide_weight=0.25, warm_up=1, quiz_size=4)
    guides = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double()
    me.begin("train", 0, 1, 1)
    quiz, study = (part.take(slice(None)) for part in method.split(me))
    outputs = guide_logits if kind is FedL2GLogits else guide_features
    exact = guide_gradient(me.model, outputs, guides, study, quiz, 0.3, 0.25)
    assert torch.allclose(answer(method, me, Guides(guides)).rows, exact, atol=1e-14)


def test_a_study_set_of_just_one_batch_is_enough():
    me = tiny(1, sizes=(12,), training=Training(epochs=1, batch_size=4, lr=0.1)).client(0)
    for quiz, sends in ((8, True), (9, False)):  # which leaves a study set of four, or of three
        method = FedL2GLogits(small_clients="skip", quiz_size=quiz)
        assert bool(len(answer(method, me, Guides(torch.zeros(3, 3).double())).labels)) == sends


def test_the_averaged_gradient_is_bounded():
    sent = [(torch.tensor([[300.0, 400.0]]), torch.tensor([0]))]
    assert (-FedL2GLogits(server_lr=1.0).move(torch.zeros(1, 2), gradients(*sent), context()))[
        0
    ].tolist() == pytest.approx([60, 80])
    free = FedL2GLogits(server_lr=1.0, server_clip=None).move(torch.zeros(1, 2), gradients(*sent), context())
    assert (-free)[0].tolist() == [300, 400]


@BOTH
def test_warm_up_leaves_the_model_alone_bit_for_bit(kind: type):
    me = tiny(1, norm=True, seed=1).client(0)
    guides = Guides(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double())
    before = weights(me)
    sent = answer(kind(warm_up=2), me, guides, number=2, rounds=20)
    assert same(before, weights(me))
    assert len(sent.rows) > 0
    answer(kind(warm_up=2), me, guides, number=3, rounds=20)
    assert not same(before, weights(me))


def test_without_a_warm_up_networks_train_from_the_first_round():
    me = tiny(1).client(0)
    before = weights(me)
    answer(FedL2GLogits(), me, Guides(torch.zeros(3, 3).double()), number=1, rounds=100)
    assert not same(before, weights(me))


@pytest.mark.parametrize("quiz", ["kept", "drawn"])
def test_a_job_never_trains_on_its_quiz(quiz: str):
    fed = tiny(1)
    method = FedL2GLogits(quiz=quiz, quiz_size=4)
    honest, quiz_client = fed.client(0), fed.client(0)
    guides = Guides(torch.zeros(3, 3).double())
    honest.begin("train", 0, 1, 1)
    rows = method.split(honest)[0].index
    assert len(rows) == 4
    changed = quiz_client.train.x.clone()
    changed[rows] += 100.0
    quiz_client.train = type(quiz_client.train)(changed, quiz_client.train.y)
    answer(method, honest, guides, number=1)
    answer(method, quiz_client, guides, number=1)
    assert honest.trained_samples == 8 + 4  # one epoch of the study set, and the pseudo step
    assert same(weights(honest), weights(quiz_client))


def test_a_kept_quiz_is_the_same_in_every_job_and_a_drawn_one_is_another():
    me = tiny(1, sizes=(40,)).client(0)

    def drawn(quiz: str, job: int) -> tuple[int, ...]:
        me.begin("train", job, job, 9)
        return tuple(FedL2GLogits(quiz=quiz, quiz_size=4).split(me)[0].index.tolist())

    assert len({drawn("kept", job) for job in range(1, 10)}) == 1
    assert len({drawn("drawn", job) for job in range(1, 10)}) > 1
    everything = set().union(*(drawn("drawn", job) for job in range(1, 60)))
    assert everything == set(range(40))  # no sample is lost to training for good
    assert drawn("drawn", 3) == drawn("drawn", 3)  # and a job that is done again asks the same


@pytest.mark.parametrize(
    ("count", "batch", "size"), [(100, 16, 16), (60, 16, 12), (12, 4, 2), (4, 4, 1), (2, 2, 1), (1, 1, 0)]
)
def test_the_quiz_is_one_batch_but_at_most_a_fifth_of_the_samples(count: int, batch: int, size: int):
    assert FedL2GLogits().quiz_count(count, batch) == size
    assert FedL2GLogits(small_clients="skip").quiz_count(count, batch) == size


@pytest.mark.parametrize(("small", "size"), [("half", 6), ("skip", 10)])
def test_stated_quiz_size_is_at_most_half_or_the_authors_size(small: str, size: int):
    assert FedL2GLogits(quiz_size=10, small_clients=small).quiz_count(12, 4) == size
    assert FedL2GLogits(quiz_size=10, small_clients=small).quiz_count(100, 4) == 10


def test_rows_that_lie_by_class_give_a_quiz_of_many_classes():
    """The first rows would be of the lowest classes alone, which then nobody ever trains on."""
    x, y = points(60, 1)
    order = torch.argsort(y, stable=True)
    fed = federate(
        [Member(Net().double(), (x[order], y[order]), name=f"client-{n}") for n in range(5)], num_classes=3
    )
    drawn = [FedL2GLogits(quiz="kept", quiz_size=12).split(fed.client(index))[0] for index in range(5)]
    assert all(len(quiz) == 12 and len(quiz.classes()) == 3 for quiz in drawn)
    assert len({tuple(quiz.index.tolist()) for quiz in drawn}) == 5  # each client has a draw of its own
    again = FedL2GLogits(quiz="kept", quiz_size=12).split(fed.client(0))[0]
    assert torch.equal(again.index, drawn[0].index)  # and keeps it


def test_a_small_client_takes_part_or_sits_out():
    fed = tiny(1, sizes=(6,), training=Training(epochs=1, batch_size=4, lr=0.1))
    guides = Guides(torch.zeros(3, 3).double())
    me = fed.client(0)
    quiz, study = FedL2GLogits(quiz_size=4).split(me)
    assert (len(quiz), len(study)) == (3, 3)
    before = weights(me)
    sent = answer(FedL2GLogits(quiz_size=4, small_clients="skip"), me, guides)
    assert len(sent.labels) == 0
    assert same(before, weights(me))
    assert len(answer(FedL2GLogits(quiz_size=4), me, guides).labels) > 0
    assert not same(before, weights(me))


@BOTH
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_smallest_clients_with_batch_norm(kind: type, size: int):
    me = tiny(1, norm=True, sizes=(size,), seed=1).client(0)
    before = weights(me)
    sent = answer(kind(), me, Guides(torch.zeros(3, 3).double()))
    assert torch.isfinite(sent.rows).all()
    assert not same(before, weights(me))
    if size == 1:
        assert len(sent.rows) == 0  # nothing is left for a quiz


def test_first_guides_are_standard_normal_and_fit_the_space():
    fed = tiny(1)
    assert FedL2GLogits().init_server(context(fed)).shape == (3, 3)
    many = FedL2GLogits().first_guides(context(fed), 2000)
    assert many.mean().item() == pytest.approx(0.0, abs=0.05)
    assert many.std().item() == pytest.approx(1.0, abs=0.05)
    assert many.dtype == torch.float64
    assert (FedL2GLogits().server_lr, FedL2GFeatures().server_lr) == (10.0, 100.0)


def test_numbers_that_travel():
    """Down C·M; up n_b·(M+1) for the n_b classes of one study batch. Table 3: 0.763 and 3.906 MiB down."""
    assert round(20 * 4 * Guides(torch.zeros(100, 100)).numel() / 2**20, 3) == 0.763
    assert round(20 * 4 * Guides(torch.zeros(100, 512)).numel() / 2**20, 3) == 3.906
    assert LogitGradients(torch.zeros(7, 100), torch.arange(7)).numel() == 7 * 101
    assert FeatureGradients(torch.zeros(7, 512), torch.arange(7)).numel() == 7 * 513


@BOTH
def test_upload_is_bounded_by_the_study_batch_and_the_classes_held(kind: type):
    fed = tiny(3, classes_of=[(0,), (0, 2), None], training=Training(epochs=1, batch_size=2, lr=0.1), seed=1)
    recorder = Recorder()
    make_loop(kind(), fed, rounds=3, callbacks=[recorder]).run()
    held_classes = [{0}, {0, 2}, {0, 1, 2}]
    for _, item in recorder.updates:
        labels = set(item.payload.labels.tolist())
        assert labels <= held_classes[item.client.index]
        assert len(labels) <= 2
    assert all(message.numel() == 9 for _, _, message in recorder.sent)


def test_one_server_step():
    method, ctx = FedL2GLogits(server_lr=0.5), context()
    start = torch.zeros(3, 3, dtype=torch.float64)
    row = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    moved = method.server(start, [update(LogitGradients(row, torch.tensor([2])))], ctx)
    assert moved.tolist() == [[0, 0, 0], [0, 0, 0], [-0.5, -1.0, -1.5]]
    assert not start.any()


@BOTH
def test_partial_participation_one_class_and_single_samples(kind: type):
    fed = tiny(4, classes_of=[(0,), (1, 2), None], norm=True, sizes=(12, 1, 7))
    recorder = Recorder()
    make_loop(kind(), fed, rounds=4, participation=0.5, callbacks=[recorder]).run()
    assert torch.isfinite(recorder.end.state).all()
    assert not torch.equal(recorder.steps[0].state, recorder.end.state)
