"""FedKD: low-rank messages, adaptive mutual distillation, and what the released codes get wrong."""

from dataclasses import replace
from math import log

import pytest
import torch
from torch.nn import functional as F

from potluck.core.method import Update
from potluck.core.payload import PayloadError
from potluck.core.schema import check_payload
from potluck.core.task import Context
from potluck.core.training import Training
from potluck.kit import distillation
from potluck.methods.fedkd import Compressed, FedKD, expand, pack, rank
from support.tiny import Recorder, answer, make_loop, seeded_net, tiny

TEACHER = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
STUDENT = torch.tensor([[log(3), 0.0]], dtype=torch.float64)
LABEL = torch.tensor([0])


@pytest.mark.parametrize(("energy", "expected_rank"), [(0.9, 2), (0.95, 3), (1.0, 3), (0.1, 1)])
def test_the_fewest_singular_values_with_the_energy(energy: float, expected_rank: int):
    """σ = (3, 2, 1): two hold 13/14 = 0.929. The released codes give 0 where all are needed."""
    assert rank(torch.tensor([3.0, 2.0, 1.0]), energy) == expected_rank


def test_distillation_over_both_cross_entropies_by_hand():
    divisor = F.cross_entropy(TEACHER, LABEL) + F.cross_entropy(STUDENT, LABEL)
    assert (distillation(STUDENT, TEACHER) / divisor).item() == pytest.approx(0.133369, abs=1e-6)
    assert (distillation(TEACHER, STUDENT) / divisor).item() == pytest.approx(0.146652, abs=1e-6)
    none = torch.zeros(1, 1, dtype=torch.float64)
    loss = FedKD(hidden=False).loss(none, none, TEACHER, STUDENT, torch.nn.Identity(), LABEL).objective
    assert loss.item() == pytest.approx(log(2) + log(4 / 3) + 0.133369 + 0.146652, abs=1e-6)
    fixed = (
        FedKD(hidden=False, adaptive=False)
        .loss(none, none, TEACHER, STUDENT, torch.nn.Identity(), LABEL)
        .objective
    )
    assert fixed.item() == pytest.approx(log(2) + log(4 / 3) + 0.130812 + 0.143841, abs=1e-6)
    compat = FedKD(hidden=False, htfllib_compat=True)
    weak = compat.loss(none, none, TEACHER, STUDENT, torch.nn.Identity(), LABEL).objective
    assert weak.item() == pytest.approx(log(2) + log(4 / 3) + (0.133369 + 0.146652) / 2, abs=1e-6)


def wide_task(rows: int = 12, columns: int = 10):
    """A task whose shared model has a matrix of this shape, `body.0.weight`."""
    return tiny(1, shared_model=seeded_net(inputs=columns, hidden=rows)).task


def matrix_of_rank(count: int, shape: tuple[int, int] = (12, 10)) -> torch.Tensor:
    rng = torch.Generator().manual_seed(1)
    left_factor, right = (torch.randn(size, count, generator=rng, dtype=torch.float64) for size in shape)
    return left_factor @ right.T


def test_low_rank_travels_as_factors_and_comes_back():
    matrix = matrix_of_rank(2)
    packed = pack({"body.0.weight": matrix}, 1.0)
    assert packed.numel() == 2 * (12 + 10 + 1)
    assert torch.allclose(expand(packed, wide_task())["body.0.weight"], matrix, atol=1e-6)


def test_full_rank_comes_back():
    """Both released codes rebuild a matrix that needs all its singular values as zeros."""
    for matrix in (torch.eye(12, 10, dtype=torch.float64), matrix_of_rank(10)):
        packed = pack({"body.0.weight": matrix}, 1.0)
        assert packed.numel() == 120  # factors would be 230
        assert torch.equal(expand(packed, wide_task())["body.0.weight"], matrix)


def test_the_lost_energy_is_within_the_bound():
    matrix = matrix_of_rank(1) + 0.2 * matrix_of_rank(10)
    packed = pack({"body.0.weight": matrix}, 0.9)
    error = expand(packed, wide_task())["body.0.weight"] - matrix
    assert 0 < error.square().sum() <= 0.1 * matrix.square().sum()
    assert packed.numel() < 120


def test_vectors_zeros_and_non_finite_values_are_sent_raw():
    tensors = {"bias": torch.ones(4), "zero": torch.zeros(20, 20), "broken": torch.full((20, 20), torch.nan)}
    packed = pack(tensors, 0.9)
    assert packed.raw.keys() == tensors.keys()
    assert packed.numel() == 4 + 400 + 400


def test_a_convolution_is_a_matrix_of_out_by_the_rest():
    """Rank 1 over all of 16 × (8·3·3): one factor pair, not one per kernel position."""
    kernel = matrix_of_rank(1, (16, 72)).reshape(16, 8, 3, 3)
    packed = pack({"kernel": kernel}, 0.95)
    assert packed.numel() == 16 + 72 + 1


def test_the_energy_rises_over_the_training():
    method = FedKD(energy_start=0.5, energy_end=1.0)
    matrix = torch.diag(torch.tensor([3.0, 2.0, 1.0] + [0.0] * 7, dtype=torch.float64))
    ranks = [len(method._pack({"w": matrix}, done=progress).values["w"]) for progress in (0.0, 0.5, 1.0)]
    assert ranks == [1, 2, 3]  # at 0.5, 0.75 and 1 of the energy: 9/14 = 0.643, 13/14 = 0.929


def test_the_energy_is_that_of_the_round(monkeypatch: pytest.MonkeyPatch):
    """Of four rounds: a client in round 3 has half of the training behind it, the server after it three quarters."""
    progress_values: list[float] = []
    plain = FedKD._pack
    monkeypatch.setattr(
        FedKD,
        "_pack",
        lambda self, tensors, done: progress_values.append(done) or plain(self, tensors, done=done),
    )
    fed = tiny(1, smooth=True)
    method, me, ctx = FedKD(), fed.client(0), Context(fed.task, 3, 4, 0, 3)
    state = method.init_server(ctx)
    sent = answer(method, me, method.broadcast(state, me.info, ctx), 3, 4)
    method.server(state, [Update(me.info, sent)], ctx)
    assert progress_values == [0.0, 0.5, 0.75]


def test_without_compression_matrices_travel_whole():
    matrix = matrix_of_rank(1)
    assert FedKD(compress=False)._pack({"w": matrix}, done=0.0).raw.keys() == {"w"}
    assert FedKD()._pack({"w": matrix}, done=0.0).values.keys() == {"w"}


def context(fed, rounds: int = 1) -> Context:
    return Context(fed.task, 1, rounds, 0, 1)


@pytest.mark.parametrize("compat", [False, True])
def test_one_round_against_plain_torch(compat: bool):
    """Teacher of 3 features, student of 2: W_h maps between them and follows both squared errors."""
    small = seeded_net(features=2, smooth=True)
    fed = tiny(1, smooth=True, shared_model=small, training=Training(epochs=2, batch_size=0, lr=0.1))
    me, method = fed.client(0), FedKD(compress=False, uplink="params", htfllib_compat=compat)
    upload = method.client(me, method.broadcast(method.init_server(context(fed)), me.info, context(fed))).raw
    fresh = fed.client(0)
    teacher, student = fresh.model, fed.task.shared_model()
    hidden = fresh.module("hidden map", lambda: torch.nn.Linear(2, 3, bias=False))
    modules = (teacher, student, hidden)
    optimizers = [torch.optim.SGD(module.parameters(), 0.1) for module in modules]
    x, y = me.train.take(slice(None))
    stop = (lambda t: t) if compat else torch.Tensor.detach

    def kl(target, out):
        return F.kl_div(out.log_softmax(1), stop(target).softmax(1), reduction="batchmean") / (
            3 if compat else 1
        )

    for _ in range(2):
        z_t, z_s = teacher.features(x), student.features(x)
        o_t, o_s = teacher.head(z_t), student.head(z_s)
        d = stop(F.cross_entropy(o_t, y) + F.cross_entropy(o_s, y))
        losses = (
            F.cross_entropy(o_t, y) + kl(o_s, o_t) / d + F.mse_loss(z_t, hidden(stop(z_s))) / d,
            F.cross_entropy(o_s, y) + kl(o_t, o_s) / d + F.mse_loss(stop(z_t), hidden(z_s)) / d,
        )
        for optimizer in optimizers:
            optimizer.zero_grad()
        for loss in losses:
            loss.backward(retain_graph=True)
        for optimizer in optimizers:
            optimizer.step()
    hidden_map = me.module("hidden map", torch.nn.Identity)
    for actual, module in (
        (me.model.state_dict(), teacher),
        (upload, student),
        (hidden_map.state_dict(), hidden),
    ):
        for name, tensor in module.state_dict().items():
            assert torch.allclose(actual[name], tensor, atol=1e-12)


def test_the_hidden_loss_can_be_left_out():
    """Then W_h is never moved."""
    fed = tiny(1, smooth=True)
    me, method = fed.client(0), FedKD(hidden=False)
    first = me.module("hidden map", lambda: torch.nn.Linear(3, 3, bias=False)).weight.clone()
    method.client(me, method.broadcast(method.init_server(context(fed)), me.info, context(fed)))
    assert torch.equal(me.module("hidden map", torch.nn.Identity).weight, first)


def test_changes_and_parameters_agree_without_loss():
    """At full energy the two kinds of uplink give the same student, BatchNorm statistics included."""
    ends = []
    for uplink in ("delta", "params"):
        recorder = Recorder()
        fed = tiny(3, smooth=True, sizes=(12, 24), shared_model=seeded_net(norm=True, smooth=True))
        make_loop(
            FedKD(energy_start=1, energy_end=1, uplink=uplink), fed, rounds=2, callbacks=[recorder]
        ).run()
        ends.append(recorder.end.state.student)
    assert all(torch.allclose(ends[0][name], ends[1][name], atol=1e-6) for name in ends[0])
    assert "body.1.running_var" in ends[0]


def test_a_change_is_added_to_the_full_student():
    """The server keeps what compression left out of the download; n = (4, 12) weighs the changes."""
    fed = tiny(2, sizes=(4, 12))
    method = FedKD()
    state = method.init_server(context(fed))
    updates = [
        Update(info, Compressed({"head.bias": torch.full((3,), value, dtype=torch.float64)}, {}, {}, {}))
        for info, value in zip(fed.task.clients, (0.0, 4.0), strict=True)
    ]
    new = method.server(state, updates, context(fed)).student
    assert torch.allclose(new["head.bias"], state.student["head.bias"] + 3.0, atol=1e-12)
    assert torch.equal(new["head.weight"], state.student["head.weight"])
    plain = replace(method, weight="uniform").server(state, updates, context(fed)).student
    assert torch.allclose(plain["head.bias"], state.student["head.bias"] + 2.0, atol=1e-12)


def test_sent_message_matters_only_for_partial_cohorts():
    """A change of 4 on a student of 1 that was sent as 0: 5 after a whole round; alone in a cohort of one, the same way."""
    fed = tiny(1)
    method, ctx = FedKD(), context(fed)
    state = method.init_server(ctx)
    state.student["head.bias"] = torch.ones(3, dtype=torch.float64)
    change, sent = (
        Compressed({"head.bias": torch.full((3,), value, dtype=torch.float64)}, {}, {}, {})
        for value in (4.0, 0.0)
    )
    update = Update(fed.task.clients[0], change, sent=sent)
    assert method.server(state, [update], ctx).student["head.bias"].tolist() == [5.0] * 3
    stale = replace(update, staleness=1, weight=0.5)
    moved = method.server(state, [stale], replace(ctx, cohort=1)).student["head.bias"]
    assert moved.tolist() == [3.0] * 3  # half of a change of 4, whatever was sent


def test_numbers_that_travel_are_those_of_the_shorter_form():
    """Both ways Σ min(PQ, n(P+Q+1)) of the matrices, plus the vectors."""
    fed = tiny(2, smooth=True, shared_model=seeded_net(hidden=30, features=25, smooth=True))
    recorder = Recorder()
    make_loop(FedKD(energy_start=0.6, energy_end=0.6), fed, rounds=2, callbacks=[recorder]).run()
    shapes = fed.task.shared_shapes()
    vectors = sum(shape[0] for shape in shapes.values() if len(shape) == 1)
    messages = [message for _, _, message in recorder.sent] + [
        update.payload for _, update in recorder.updates
    ]
    for message in messages:
        matrices = sum(
            min(shape[0] * shape[1], len(message.values[name]) * (sum(shape) + 1))
            if name in message.values
            else shape[0] * shape[1]
            for name, shape in shapes.items()
            if len(shape) == 2
        )
        assert message.numel() == vectors + matrices
        assert message.values.keys() >= {"body.2.weight"}  # 25 × 30 is worth compressing at this energy
    record = recorder.steps[0].record
    assert record.floats_down == sum(message.numel() for number, _, message in recorder.sent if number == 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": {}}, "not all its factors"),
        ({"left": {"body.0.weight": torch.zeros(11, 1, dtype=torch.float64)}}, "do not make"),
        ({"right": {"body.0.weight": torch.zeros(2, 10, dtype=torch.float64)}}, "do not make"),
        ({"raw": {"body.0.weight": torch.zeros(12, 10, dtype=torch.float64)}}, "not all its factors"),
    ],
)
def test_factors_that_do_not_fit_are_refused(change: dict, message: str):
    task = wide_task()
    good = pack({"body.0.weight": matrix_of_rank(1)}, 0.95)
    check_payload(good, Compressed, task, task.clients[0])
    with pytest.raises(PayloadError, match=message):
        check_payload(replace(good, **change), Compressed, task, task.clients[0])


def test_predict_uses_the_selected_model():
    fed = tiny(1, smooth=True)
    me, method = fed.client(0), FedKD(predict_with="student", compress=False)
    message = method.broadcast(method.init_server(context(fed)), me.info, context(fed))
    method.client(me, message)
    x, _ = me.test.take(slice(None))
    assert FedKD().predict(me, message) is me.model
    assert torch.equal(method.predict(me, message)(x), fed.task.shared_model()(x))
    trained = me.module("shared", torch.nn.Identity)
    assert torch.equal(method.predict(me, None)(x), trained(x))
    assert not torch.allclose(trained(x), fed.task.shared_model()(x))


def test_a_client_without_loss_left_does_not_explode():
    """One class is soon learned: D goes to 0 and, without a floor, a digits client of one class ends in NaN."""
    sure = torch.tensor([[20.0, 0.0]], dtype=torch.float64)
    ones, zeros = torch.ones(1, 4, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
    none = torch.nn.Identity()
    assert FedKD().loss(ones, zeros, sure, sure, none, LABEL).objective.item() == pytest.approx(
        2 * 1.0 / 0.1, abs=1e-6
    )
    assert FedKD(floor=0).loss(ones, zeros, sure, sure, none, LABEL).objective.item() > 1e8
