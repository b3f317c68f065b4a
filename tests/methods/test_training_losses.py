"""The training objective and the cross-entropy in it, as every method records them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from potluck.core.client import Client
from potluck.core.method import Update
from potluck.core.model import ClientModel
from potluck.core.training import FitResult, LossParts, Training
from potluck.engines.vectorized import JobBatcher, VectorizedEngine
from potluck.experiment import make_method
from potluck.loop.loop import Loop
from potluck.loop.schedule import Evaluation, Schedule
from potluck.methods import METHODS, method_class
from potluck.methods.fedprox import FedProx
from potluck.methods.standalone import Standalone
from potluck.testing import small_federation
from potluck.worker.worker import Worker
from support.tiny import Recorder, answer, context, make_loop, tiny

ONE_BATCH = Training(epochs=1, batch_size=0, lr=0.05)
TRAINED = [name for name in METHODS if name != "fedcgs"]  # which takes no steps
ALONE = {
    "hetlora",
    "flexlora",
    "flora",
    "standalone",
    "fedavg",
    "lg-fedavg",
    "fedgh",
    "fednova",
    "scaffold",
    "inclusivefl",
    "fedmd",
}
ALONE |= {"heterofl", "fedrolex", "pfedafm"}
"""Methods whose own model trains on cross-entropy and nothing else."""
FROM_ZERO = {"fedprox", "fedin"}
"""Methods whose other term is zero in the first step."""
QUICK: dict[str, dict[str, Any]] = {"fedtgp": {"server_epochs": 2}, "fedgen": {"server_steps": 2}}


def scores(model: ClientModel, x: Tensor, other_models: dict[str, Any]) -> Tensor:
    """What a client predicts with, spelled out: its model, or the mixture or fusion that holds it."""
    if "alpha" in other_models:
        small = other_models["small"].features(x)
        return model.head((1 - other_models["alpha"]) * small + other_models["alpha"] * model.features(x))
    if "projector" in other_models:
        both = torch.cat([other_models["shared"].features(x), model.features(x)], dim=1)
        return model.head(other_models["projector"](both))
    if "present" in other_models:
        return torch.where(other_models["present"], model(x), 0.0)
    return model(x)


def watch(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Compute the cross-entropy of each fit over everything, just before it begins."""
    losses: list[float] = []
    request: dict[str, Any] = {}
    train_alone, fit_models = Client.train_alone, Client.fit_models

    def watched_request(me: Client, fit_request: Any) -> FitResult:
        named = {"mixed_loss": "small", "masked_loss": "present"}.get(fit_request.loss.__name__)
        if named:
            request[named] = fit_request.loss_args[0]
        if fit_request.also:
            request["alpha"] = fit_request.also[0].detach().clone()
        return train_alone(me, fit_request)

    def watched_fit(me: Client, models: Any, loss: Any, **named: Any) -> FitResult:
        samples = named.get("samples")
        x, y = me.prepare(*(me.train if samples is None else samples).take(slice(None)))
        first, *other_models = models.values()
        if y.dim() == 1:  # FedMD's digest has scores in place of labels
            copies = [copy.deepcopy(model).train() for model in (first, *other_models)]
            parts = {**request, **dict(zip(list(models)[1:], copies[1:], strict=True))}
            with torch.no_grad():
                losses.append(float(F.cross_entropy(scores(copies[0], x, parts), y)))
        return fit_models(me, models, loss, **named)

    monkeypatch.setattr(Client, "train_alone", watched_request)
    monkeypatch.setattr(Client, "fit_models", watched_fit)
    return losses


@pytest.mark.parametrize("name", TRAINED)
def test_cross_entropy_is_that_of_the_predicting_model(name: str, monkeypatch: pytest.MonkeyPatch):
    """In its second job; the first has no message to be drawn to, and its weights are still those of the start."""
    method = make_method(method_class(name), QUICK.get(name, {}))
    fed = small_federation(method, training=ONE_BATCH)
    ctx, clients = context(fed, rounds=2), [fed.client(index) for index in range(3)]
    state = method.init_server(ctx)
    first = [answer(method, me, method.broadcast(state, me.info, ctx), rounds=2) for me in clients]
    updates = [Update(me.info, payload) for me, payload in zip(clients, first, strict=True)]
    state = method.server(state, updates, ctx)
    me, later = clients[0], context(fed, number=2, rounds=2)
    message = method.broadcast(state, me.info, later)
    losses = watch(monkeypatch)
    answer(method, me, message, number=2, rounds=2)
    assert me.train_ce == pytest.approx(losses[-1 if name == "fedmd" else 0], rel=1e-12)
    alone = me.train_ce == me.train_loss
    assert alone == (name in ALONE | FROM_ZERO), (
        f"{'add' if alone else 'remove'} {name!r} in ALONE, or in FROM_ZERO"
    )


def test_the_mean_over_clients_is_by_training_samples():
    """One step each, of 12 and of 4 samples: Σ n_k CE_k / Σ n_k; the objective is the plain mean."""
    fed = tiny(2, sizes=(12, 4), training=ONE_BATCH)
    large, small = (
        F.cross_entropy(member.model(member.train.take(slice(None))[0]), member.train.labels).item()
        for member in fed.members
    )
    recorder = Recorder()
    make_loop(Standalone(), fed, rounds=1, callbacks=[recorder]).run()
    record = recorder.steps[0].record
    assert record.train_ce == pytest.approx((12 * large + 4 * small) / 16, rel=1e-12)
    assert record.train_loss == pytest.approx((large + small) / 2, rel=1e-12)


class Silent(Standalone):
    """Trains on a loss that does not say what of it is cross-entropy."""

    def client(self, me: Client, message: Any) -> Any:
        result = me.fit(half)
        assert result.cross_entropy is None
        return message


def half(model: ClientModel, x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * F.cross_entropy(model(x), y)


class Wavering(Standalone):
    """Knows the cross-entropy of the first step only."""

    def client(self, me: Client, message: Any) -> Any:
        steps = iter((True, False))

        def loss(x: Tensor, y: Tensor) -> Tensor | LossParts:
            value = F.cross_entropy(me.model(x), y)
            return LossParts(value, value) if next(steps) else value

        me.fit_models({"model": me.model}, loss)
        return message


@pytest.mark.parametrize("method", [Silent, Wavering])
def test_no_cross_entropy_is_on_record_where_a_step_did_not_say(method: type[Standalone]):
    recorder = Recorder()
    make_loop(method(), tiny(2, sizes=(8,)), rounds=1, callbacks=[recorder]).run()
    assert recorder.steps[0].record.train_ce is None
    assert recorder.steps[0].record.train_loss is not None


@pytest.mark.parametrize("method", [FedProx(mu=5.0), Standalone(), Silent()])
def test_stacked_clients_record_the_notes_of_single_clients(method: Any):
    """With one batch or two of 4 samples, in two epochs, so that clients of the stack end at different steps."""
    runs = []
    for stacked in (False, True):
        fed, recorder = (
            tiny(4, hidden=(5,), sizes=(4, 8), training=Training(epochs=2, batch_size=4)),
            Recorder(),
        )
        if stacked:
            engine = VectorizedEngine(Worker(method, fed.client), JobBatcher(fed.task))
            Loop(method, fed.task, engine, Schedule(2), Evaluation(), [recorder]).run()
            engine.close()
        else:
            make_loop(method, fed, rounds=2, callbacks=[recorder]).run()
        runs.append([(step.record.train_ce, step.record.train_loss) for step in recorder.steps])
    for (entropy, objective), (stacked_entropy, stacked_objective) in zip(*runs, strict=True):
        assert stacked_objective == pytest.approx(objective, rel=1e-9)
        assert stacked_entropy == (None if entropy is None else pytest.approx(entropy, rel=1e-9))
    if isinstance(method, FedProx):
        assert runs[0][1][0] < runs[0][1][1]  # the pull is in the objective alone
