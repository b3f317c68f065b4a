"""Row-level privacy: the influence of one row by hand, and the accountants' figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import potluck
from potluck.core.errors import PotluckError
from potluck.core.training import FitRequest, Training, cross_entropy_loss
from potluck.privacy.accounting import epsilon, record_epsilon, record_mechanisms
from potluck.privacy.rows import RecordPrivacy, steps_per_job
from potluck.privacy.settings import Privacy
from support.tiny import tiny

pytest.importorskip("opacus")


def guarded(training: Training, rows: int = 12, **settings: Any) -> tuple[Any, RecordPrivacy]:
    me = tiny(1, sizes=(rows,), training=training, smooth=True).client(0)
    me.begin("train", 0, 1, 1)
    return me, RecordPrivacy(Privacy(unit="record", **settings), me)


def row_gradients(me: Any) -> list[list[Tensor]]:
    """Every row's gradient by a backward pass of its own."""
    x, y = me.prepare(*me.train.take(slice(None)))
    gradients = []
    for row in range(len(y)):
        loss = cross_entropy(me.model(x[row : row + 1]), y[row : row + 1])
        gradients.append(list(torch.autograd.grad(loss, list(me.model.parameters()))))
    return gradients


def request(me: Any) -> FitRequest:
    return FitRequest(loss=cross_entropy_loss, model=me.model)


def test_a_step_is_the_mean_of_clipped_gradients():
    """One batch of all rows, no noise: w − lr · Σ g_i · min(1, C/|g_i|) / n, worked out row by row."""
    me, guard = guarded(Training(epochs=1, batch_size=0, lr=0.5), clip=0.3)
    gradients = row_gradients(me)
    lengths = [
        math.sqrt(sum(float(part.square().sum()) for part in row_gradient)) for row_gradient in gradients
    ]
    assert any(length > 0.3 for length in lengths)
    assert any(length < 3.0 for length in lengths)
    scales = [min(1.0, 0.3 / length) for length in lengths]
    wanted = [
        parameter.detach()
        - 0.5 * sum(s * row_gradient[number] for s, row_gradient in zip(scales, gradients, strict=True)) / 12
        for number, parameter in enumerate(me.model.parameters())
    ]
    guard.train(request(me))
    for parameter, expected in zip(me.model.parameters(), wanted, strict=True):
        assert torch.allclose(parameter, expected, atol=1e-12)
    assert me.train_loss is me.train_ce is None  # they are made from rows without any noise


def test_noise_has_the_promised_size_per_step():
    """Gradients clipped to almost nothing: all that moves the weights is z·C/n times the learning rate."""
    me, guard = guarded(Training(epochs=1, batch_size=0, lr=1.0), clip=1e-6, noise_multiplier=3.0)
    before = torch.cat([parameter.detach().flatten() for parameter in me.model.parameters()])
    moved = []
    for job in range(60):
        me.begin("train", job, 1, 1)
        RecordPrivacy(guard.settings, me).train(request(me))
        after = torch.cat([parameter.detach().flatten() for parameter in me.model.parameters()])
        moved.append(after - before)
        before = after
    assert torch.stack(moved).std().item() == pytest.approx(3e-6 / 12, rel=0.1)


def test_every_row_has_the_same_chance_in_every_step():
    assert steps_per_job(100, 10, 2) == (20, 0.1)
    assert steps_per_job(95, 10, 1) == (10, pytest.approx(10 / 95))
    assert steps_per_job(7, 16, 3) == (3, 1.0)
    assert steps_per_job(7, 0, 3) == (3, 1.0)
    for secret in (False, True):
        _, guard = guarded(Training(), clip=1.0, reproducible=not secret)
        drawn = guard._uniform(20000)
        assert 0 <= float(drawn.min()) < float(drawn.max()) < 1
        assert float((drawn < 0.1).double().mean()) == pytest.approx(0.1, abs=0.01)


def test_class_means_are_of_clipped_vectors_and_thin_classes_are_left_out():
    me, guard = guarded(Training(), clip=1.0, vector_clip=2.0)
    x, y = me.prepare(*me.train.take(slice(None)))
    lengths = x.norm(dim=1, keepdim=True)
    clipped = x * (2.0 / lengths).clamp(max=1)
    means, labels, counts = guard.class_means(lambda rows: rows)
    assert labels.tolist() == [0, 1, 2]
    assert counts.tolist() == [4, 4, 4]
    for label in range(3):
        assert torch.allclose(means[label], clipped[y == label].mean(dim=0))
    guard = RecordPrivacy(guard.settings, me)
    _, labels, _ = guard.class_means(lambda rows: rows, me.train.select(torch.tensor([0, 1, 3])))
    assert labels.tolist() == [0]  # two rows of class 0, one of class 1: a single row is not told of


def test_mechanisms_by_hand():
    training = Training(epochs=2, batch_size=10)
    assert record_mechanisms(1.5, 100, training, 3, vectors=False) == [(1.5, 0.1, 60)]
    steps, sums = record_mechanisms(1.5, 100, training, 3, vectors=True)
    assert steps == (1.5, 0.1, 60)
    assert sums == (pytest.approx(1.5 / math.sqrt(2)), 1.0, 3)
    assert record_mechanisms(1.5, 100, training, 0, vectors=True) == []
    twice = record_mechanisms(1.5, 100, training, 3, vectors=False, fits=2)
    assert twice == [(1.5, 0.1, 120)]  # 3 jobs × 2 trainings × 2 epochs × 10 batches


def delta_of(epsilon: float, noise: float) -> float:
    """The exact δ of one Gaussian mechanism of sensitivity 1 (Balle and Wang 2018, theorem 8)."""
    from scipy.stats import norm

    a, b = 1 / (2 * noise), epsilon * noise
    return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))


def test_the_accountants_bound_is_above_the_truth_and_near_it():
    spent = record_epsilon([[(2.0, 1.0, 1)]], 1e-5)
    assert delta_of(spent, 2.0) <= 1e-5
    assert delta_of(0.97 * spent, 2.0) > 1e-5
    several = record_epsilon([[(2.0, 1.0, 4)]], 1e-5)  # four of noise 2 are one of noise 1
    assert delta_of(several, 1.0) <= 1e-5 < delta_of(0.97 * several, 1.0)
    assert record_epsilon([[(1.0, 0.1, 100)], [(2.0, 1.0, 1)], []], 1e-5) == record_epsilon(
        [[(1.0, 0.1, 100)]], 1e-5
    )
    assert record_epsilon([[(0.0, 0.1, 5)]], 1e-5) == math.inf
    assert record_epsilon([[]], 1e-5) == 0.0


def test_the_client_unit_has_the_tighter_bound_too():
    """Noise of 5 and answers that move by 2C: four of them are one Gaussian mechanism of noise 1.25."""
    spent = epsilon(5.0, 4, 1e-5)
    assert delta_of(spent, 1.25) <= 1e-5 < delta_of(0.97 * spent, 1.25)
    assert epsilon(0.5, 1000, 1e-5) > 30  # where nothing is promised the quick bound will do


SMALL: dict[str, Any] = {"data": {"limit": 200}, "clients": 3, "rounds": 2, "models": "small-mlp",
                         "training": {"epochs": 1}}  # fmt: skip


AFTER = {"fedhe": {"collect": "after"}}


@pytest.mark.parametrize(
    "method",
    ["fedavg", "fedprox", "moon", "lg-fedavg", "fedgh", "fedproto", "fedtgp", "fedhe", "pfedafm"],
)
def test_methods_train_under_row_privacy_and_report_the_budget(tmp_path: Path, method: str):
    private = {"unit": "record", "clip": 1.0, "noise_multiplier": 1.0}
    run = potluck.run(method, method=AFTER.get(method, {}), privacy=private, engine="serial",
                      out=tmp_path / "run", **SMALL)  # fmt: skip
    summary = run.summary["privacy"]
    assert summary["unit"] == "record"
    assert 0 < summary["epsilon"] < 100
    assert all(row["train_loss"] is None and not row["failures"] for row in run.rounds)


def test_every_engine_draws_the_same_noise(tmp_path: Path):
    private = {"unit": "record", "clip": 1.0, "noise_multiplier": 1.0}
    runs = [
        potluck.run("fedgh", privacy=private, engine=engine, out=tmp_path / engine, **SMALL)
        for engine in ("serial", "pool")
    ]
    assert [row["accuracy"] for row in runs[0].rounds] == [row["accuracy"] for row in runs[1].rounds]


@pytest.mark.parametrize(
    ("method", "more", "says"),
    [
        ("fd", {}, "is not supported by FD with these settings: .*; use one of fedavg, .*fedhe, pfedafm"),
        (
            "fedhe",
            {},
            "is not supported by FedHe .*; set method.collect = 'after' and method.inner_batches = 0",
        ),
        (
            "pfedafm",
            {"method": {"train": "end_to_end"}},
            "is not supported by PFedAFM .*; set method.train = 'iterative'",
        ),
        (
            "pfedafm",
            {"models": {"names": ["small-mlp"], "shared": "small-res"}},
            "of 'the shared small model' does not",
        ),
        (
            "fedproto",
            {"method": {"aggregate": "weighted"}},
            "is not supported by FedProto with these settings",
        ),
        ("fedgh", {"models": "small-res"}, r"which .*\\(BatchNorm2d\\).* of 'small-res' does not give"),
        ("fedgh", {"engine": {"name": "serial", "vectorize": "on"}}, "engine.vectorize = 'on' has no effect"),
    ],
)
def test_unsupported_row_privacy_is_rejected(method: str, more: dict[str, Any], says: str):
    settings = {
        "models": "small-mlp",
        "privacy": {"unit": "record", "clip": 1.0},
        "rounds": 1,
        "clients": 2,
        **more,
    }
    with pytest.raises(PotluckError, match=says.replace("\\\\", "\\")):
        potluck.run(method, **settings)
    with pytest.raises(PotluckError, match="privacy.unit = 'record' has no effect: privacy.clip is 0"):
        potluck.run("fedgh", privacy={"unit": "record"}, rounds=1)
