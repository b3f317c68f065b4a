"""Squared gradient norms of the tested models: values against autograd, engines and schedules, and who refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import potluck
from potluck.core.errors import PotluckError
from potluck.core.training import Training
from potluck.engines.serial import SerialEngine
from potluck.loop.loop import Loop
from potluck.loop.schedule import Evaluation, Protocol, Schedule
from potluck.methods.fedavg import FedAvg
from potluck.methods.standalone import Standalone
from potluck.report.figures import plot
from potluck.worker.worker import Worker
from support.tiny import Recorder, tiny

QUIET = Training(epochs=1, batch_size=64, lr=0.0)
"""Training that changes nothing, so that the tested weights are the first ones."""


def squared_norm(model: nn.Module, x: Tensor, y: Tensor) -> float:
    gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    return float(torch.cat([gradient.flatten() for gradient in gradients]).square().sum())


def recorded(
    method: Any, fed: Any, protocol: Protocol, rounds: int = 1, **schedule: Any
) -> list[float | None]:
    recorder, evaluation = Recorder(), Evaluation(protocol, gradient_norm=True)
    engine = SerialEngine(Worker(method, fed.client))
    Loop(method, fed.task, engine, Schedule(rounds, **schedule), evaluation, [recorder]).run()
    return [step.record.gradient_norm for step in recorder.steps]


@pytest.mark.parametrize("protocol", ["local", "received"])
@pytest.mark.parametrize("sizes", [(12, 4), (300, 40)])
def test_gradient_norm_is_the_sample_weighted_mean_over_clients(protocol: Protocol, sizes: tuple[int, int]):
    """300 samples take two batches: the norm is of the mean gradient, not a mean of norms."""
    fed = tiny(2, sizes=sizes, training=QUIET)
    large, small = (
        squared_norm(member.model, member.train.take(slice(None))[0], member.train.labels)
        for member in fed.members
    )
    expected = (sizes[0] * large + sizes[1] * small) / sum(sizes)
    assert recorded(Standalone(), fed, protocol) == pytest.approx([expected], rel=1e-12)


def test_a_received_model_is_not_the_trained_one():
    """With FedAvg `local` is at the trained weights, `received` at their mean."""
    fed = tiny(2, hidden=(5,), sizes=(12, 4), training=Training(epochs=2, batch_size=4, lr=0.5))
    local, received = (recorded(FedAvg(), fed, protocol)[0] for protocol in ("local", "received"))
    assert local is not None
    assert received is not None
    assert local != pytest.approx(received, rel=1e-3)


def test_testing_the_gradient_leaves_training_alone():
    finals = []
    for gradient_norm in (False, True):
        fed, recorder = tiny(2, sizes=(8,)), Recorder()
        engine = SerialEngine(Worker(FedAvg(), fed.client))
        evaluation = Evaluation("local", gradient_norm=gradient_norm)
        Loop(FedAvg(), fed.task, engine, Schedule(3), evaluation, [recorder]).run()
        assert (recorder.steps[0].record.gradient_norm is not None) == gradient_norm
        finals.append([step.record.train_loss for step in recorder.steps])
    assert finals[0] == finals[1]


def test_rounds_without_evaluation_have_none():
    recorder, fed = Recorder(), tiny(2, sizes=(8,))
    engine = SerialEngine(Worker(FedAvg(), fed.client))
    evaluation = Evaluation("received", every=2, gradient_norm=True)
    Loop(FedAvg(), fed.task, engine, Schedule(3), evaluation, [recorder]).run()
    assert [step.record.gradient_norm is None for step in recorder.steps] == [True, False, False]


RUN: dict[str, Any] = {
    "clients": 3,
    "rounds": 2,
    "models": "small-mlp",
    "partition": "iid",
    "data": {"name": "digits", "limit": 120},
}


@pytest.mark.parametrize("schedule", [{}, {"mode": "async", "concurrency": 2}])
def test_engines_agree(schedule: dict[str, Any]):
    curves = []
    for engine in (
        {"name": "serial"},
        {"name": "pool", "workers": 2},
        {"name": "serial", "vectorize": "on"},
    ):
        run = potluck.run(
            "fedgh", **RUN, schedule=schedule, evaluate={"gradient_norm": True}, engine=engine, out=None
        )
        curves.append(run.curve("gradient_norm").y)
    assert len(curves[0]) >= 2
    assert all(value > 0 for value in curves[0])
    assert curves[1].tolist() == curves[0].tolist()
    assert curves[2] == pytest.approx(curves[0], rel=1e-4)


def test_it_is_drawn_and_asked_for_where_it_is_missing(tmp_path: Path):
    run = potluck.run(
        "fedavg", **RUN, evaluate={"gradient_norm": True}, engine="serial", out=tmp_path / "with"
    )
    assert plot([run], tmp_path / "figure.png", "gradient-norm").exists()
    bare = potluck.run("fedavg", **RUN, engine="serial", out=tmp_path / "without")
    with pytest.raises(PotluckError, match=r"gradient norms.*evaluate\.gradient_norm=true"):
        plot([bare], tmp_path / "none.png", "gradient-norm")


def test_privacy_refuses_it():
    with pytest.raises(PotluckError, match=r"evaluate\.gradient_norm = True has no effect: .*without noise"):
        potluck.run(
            "fedgh",
            **RUN,
            evaluate={"gradient_norm": True},
            privacy={"clip": 1.0},
            engine="serial",
            out=None,
        )
