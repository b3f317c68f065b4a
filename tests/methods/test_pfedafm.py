"""pFedAFM: the mixture and its weights by hand, the two steps of training, and the bugs of its release."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import potluck
from potluck.core.errors import PotluckError
from potluck.core.method import Update
from potluck.core.task import ClientInfo, Context
from potluck.core.training import Training
from potluck.core.tree import equal as same_state
from potluck.kit import SharedWeights
from potluck.methods import pfedafm
from potluck.methods.pfedafm import PFedAFM, mix
from potluck.models import build_model
from support.tiny import Recorder, make_loop, seeded_net, tiny

FULL_BATCH = Training(epochs=1, batch_size=0, lr=0.1)


def context(fed) -> Context:
    return Context(fed.task, 1, 1, 0, 1)


def first_message(fed, method) -> SharedWeights:
    return method.broadcast(method.init_server(context(fed)), fed.task.clients[0], context(fed))


def by_hand() -> tuple[torch.Tensor, torch.Tensor]:
    """G = [1, 2], F = [3, 4], α = [1, ¼], identity head, label 1: α and the loss."""
    small, large = (torch.tensor([row], dtype=torch.float64) for row in ([1.0, 2.0], [3.0, 4.0]))
    alpha = torch.tensor([1.0, 0.25], dtype=torch.float64, requires_grad=True)
    mixed = mix(alpha, small, large)
    assert mixed.tolist() == [[3.0, 2.5]]
    return alpha, F.cross_entropy(mixed, torch.tensor([1]))


def test_mixture_loss_and_gradient_by_hand():
    alpha, loss = by_hand()
    loss.backward()
    assert loss.item() == pytest.approx(0.974077, abs=1e-6)
    assert alpha.grad.tolist() == pytest.approx([1.244919, -1.244919], abs=1e-6)


@pytest.mark.parametrize(
    ("clamp", "expected"), [(True, [0.0, 1.0]), (False, [1 - 1.244919, 0.25 + 1.244919])]
)
def test_weights_stay_between_zero_and_one(clamp: bool, expected: list[float]):
    alpha, loss = by_hand()
    loss.backward()
    PFedAFM(alpha_lr=1.0, clamp=clamp).adapt(alpha)
    assert alpha.tolist() == pytest.approx(expected, abs=1e-6)
    assert alpha.grad is None


def test_the_mean_is_weighted_by_training_samples():
    """n = (100, 300), θ = (0, 4) gives 3; the release would give the last client's 4."""
    fed = tiny(1)
    updates = [
        Update(
            ClientInfo(index, str(index), n, "Net"), SharedWeights({"body.0.bias": torch.full((2,), value)})
        )
        for index, (n, value) in enumerate([(100, 0.0), (300, 4.0)])
    ]
    state = PFedAFM().server({"body.0.bias": torch.zeros(2)}, updates, context(fed))
    assert state["body.0.bias"].tolist() == [3.0, 3.0]


def test_one_round_against_plain_torch():
    """Step 1 moves ω and α with G fixed, step 2 moves G in front of the head just trained."""
    fed = tiny(1, smooth=True, training=Training(epochs=2, batch_size=0, lr=0.1, weight_decay=0.01))
    method = PFedAFM(alpha_lr=0.5)
    me = fed.client(0)
    upload = method.client(me, first_message(fed, method)).tensors
    twin, small = fed.client(0).model, fed.task.shared_model()
    alpha = torch.ones(3, dtype=torch.float64, requires_grad=True)
    x, y = me.train.take(slice(None))
    optimizer = torch.optim.SGD(twin.parameters(), 0.1, weight_decay=0.01)
    for _ in range(2):
        mixed = (1 - alpha) * small.features(x).detach() + alpha * twin.features(x)
        optimizer.zero_grad()
        alpha.grad = None
        F.cross_entropy(twin.head(mixed), y).backward()
        optimizer.step()
        alpha.data = (alpha.data - 0.5 * alpha.grad).clamp(0, 1)
    head = {name: tensor.clone() for name, tensor in twin.head.state_dict().items()}
    extractor = [parameter for name, parameter in small.named_parameters() if not name.startswith("head.")]
    optimizer = torch.optim.SGD(extractor, 0.1, weight_decay=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(twin.head(small.features(x)), y).backward()
        optimizer.step()
    assert torch.allclose(me.private["alpha"], alpha, atol=1e-12)
    assert 0 < me.private["alpha"].min() < 1
    assert all(torch.allclose(me.model.head.state_dict()[name], t, atol=1e-12) for name, t in head.items())
    assert upload.keys() == {name for name in small.state_dict() if not name.startswith("head.")}
    assert all(torch.allclose(upload[name], small.state_dict()[name], atol=1e-12) for name in upload)


def test_the_second_step_leaves_the_large_model_alone(monkeypatch: pytest.MonkeyPatch):
    """Head, extractor and α have the same bits before and after the small extractor is trained."""
    fed = tiny(1, smooth=True, training=FULL_BATCH)
    me, method = fed.client(0), PFedAFM()
    gradients = {}
    fit = me.fit

    def watched(*args, **options):
        if "model" not in options:
            return fit(*args, **options)
        gradients["before"] = {name: tensor.clone() for name, tensor in me.model.state_dict().items()}
        gradients["small"] = options["model"].body[0].weight.clone()
        result = fit(*args, **options)
        gradients["moved"] = not torch.equal(gradients["small"], options["model"].body[0].weight)
        return result

    monkeypatch.setattr(me, "fit", watched)
    method.client(me, first_message(fed, method))
    assert gradients["moved"]
    assert all(
        torch.equal(gradients["before"][name], tensor) for name, tensor in me.model.state_dict().items()
    )
    assert all(parameter.requires_grad for parameter in me.model.parameters())


@pytest.mark.parametrize("train", ["iterative", "end_to_end"])
def test_the_mixing_weights_learn_as_much_in_half_precision(train: str):
    """Their gradient is scaled up with the loss, by 2^16: taken as it is, every weight would land on 0 or 1."""
    learned = []
    for amp in ("off", "fp16"):
        fed = tiny(1, training=replace(FULL_BATCH, amp=amp), dtype=torch.float32)
        method, me = PFedAFM(alpha_lr=0.1, train=train), fed.client(0)
        message = first_message(fed, method)
        me.begin("train", 0, 1, 1)
        method.client(me, message)
        learned.append(me.private["alpha"])
    assert (learned[0] - 1).abs().max() > 1e-4
    torch.testing.assert_close(learned[1], learned[0], rtol=0, atol=2e-4)


def test_a_mixing_weight_that_overflows_in_half_precision_stays(monkeypatch: pytest.MonkeyPatch):
    fed = tiny(1, training=replace(FULL_BATCH, amp="fp16"), dtype=torch.float32)
    method, me = PFedAFM(alpha_decay=0.5), fed.client(0)
    mixed_loss = pfedafm.mixed_loss
    monkeypatch.setattr(pfedafm, "mixed_loss", lambda *arguments: mixed_loss(*arguments).objective * 2.0**30)
    message = first_message(fed, method)
    me.begin("train", 0, 1, 1)
    method.client(me, message)
    assert me.private["alpha"].tolist() == [1.0] * me.model.feature_dim
    assert me._loss_scale().state()["scale"] < 2.0**16


def test_weights_are_personal_and_last():
    """In the release one α is handed from client to client."""
    fed = tiny(3, smooth=True, training=FULL_BATCH)
    method = PFedAFM(alpha_lr=0.5)
    loop = make_loop(method, fed, rounds=1)
    loop.run()
    first = [loop.fetch(index)["private"]["alpha"] for index in range(3)]
    assert len({tuple(alpha.tolist()) for alpha in first}) == 3
    loop = make_loop(method, fed, rounds=2)
    loop.run()
    assert not torch.equal(loop.fetch(0)["private"]["alpha"], first[0])


def test_weight_decay_does_not_touch_the_weights():
    """With α's gradient zero (α_lr any), decay of 1 % per step would have moved it off 1."""
    fed = tiny(1, smooth=True, training=Training(epochs=3, batch_size=0, lr=0.1, weight_decay=0.1))
    me, method = fed.client(0), PFedAFM(alpha_lr=0.0)
    method.client(me, first_message(fed, method))
    assert me.private["alpha"].tolist() == [1.0, 1.0, 1.0]


def test_the_aggregate_is_not_the_last_client():
    recorder = Recorder()
    make_loop(PFedAFM(), tiny(3, sizes=(12, 24, 6)), rounds=1, callbacks=[recorder]).run()
    uploads = [update.payload.tensors["body.0.weight"] for _, update in recorder.updates]
    mean = (12 * uploads[0] + 24 * uploads[1] + 6 * uploads[2]) / 42
    assert torch.allclose(recorder.end.state["body.0.weight"], mean, atol=1e-12)
    assert not torch.allclose(mean, uploads[-1], atol=1e-4)


def test_end_to_end_trains_all_at_once():
    fed = tiny(1, smooth=True, training=FULL_BATCH)
    me, method = fed.client(0), PFedAFM(alpha_lr=0.5, train="end_to_end")
    alpha = torch.full(
        (3,), 0.5, dtype=torch.float64, requires_grad=True
    )  # at 1 the small extractor has no slope
    me.private["alpha"] = alpha.detach().clone()
    message = first_message(fed, method)
    upload = method.client(me, message).tensors
    assert not any(torch.equal(upload[name], message.tensors[name]) for name in upload)
    twin, small = fed.client(0).model, fed.task.shared_model()
    x, y = me.train.take(slice(None))
    mixed = (1 - alpha) * small.features(x) + alpha * twin.features(x)
    F.cross_entropy(twin.head(mixed), y).backward()
    expected = {
        name: p - 0.1 * p.grad for name, p in small.named_parameters() if not name.startswith("head.")
    }
    assert all(torch.allclose(upload[name], tensor, atol=1e-12) for name, tensor in expected.items())
    assert torch.allclose(me.private["alpha"], (alpha - 0.5 * alpha.grad).clamp(0, 1), atol=1e-12)
    assert all(torch.equal(me.private["extractor"][name], tensor) for name, tensor in upload.items())


def test_recorded_loss_is_that_of_the_predicting_model():
    """At α = 1 the mixture is the own model; the small extractor's loss, which comes last, is not told."""
    fed = tiny(1, smooth=True, training=FULL_BATCH)
    me, method = fed.client(0), PFedAFM()
    x, y = me.train.take(slice(None))
    own = F.cross_entropy(me.model(x), y).item()
    me.begin("train", 0, 1, 1)
    method.client(me, first_message(fed, method))
    assert me.train_loss == pytest.approx(own)


def test_a_new_client_predicts_with_its_own_model():
    """α = 1 mixes nothing in; and nothing is remembered of having been asked."""
    fed = tiny(1)
    me, method = fed.client(0), PFedAFM()
    x, _ = me.test.take(slice(None))
    before = me.state()
    assert torch.equal(method.predict(me, None)(x), me.model(x))
    assert torch.equal(method.predict(me, first_message(fed, method))(x), me.model(x))
    assert same_state(me.state(), before)


def test_predict_uses_the_selected_model():
    """Mixed, small and large; the small extractor is the one received, not the one trained after it."""
    fed = tiny(1, smooth=True, training=FULL_BATCH)
    me, method = fed.client(0), PFedAFM(alpha_lr=0.5)
    method.client(me, first_message(fed, method))
    x, _ = me.test.take(slice(None))
    received = fed.task.shared_model().features(x)
    head, own = me.model.head, me.model.features(x)
    assert torch.equal(method.predict(me, None)(x), head(mix(me.private["alpha"], received, own)))
    assert torch.equal(PFedAFM(predict_with="small").predict(me, None)(x), head(received))
    assert torch.equal(PFedAFM(predict_with="large").predict(me, None)(x), me.model(x))
    zeros = SharedWeights(
        {name: torch.zeros_like(t) for name, t in first_message(fed, method).tensors.items()}
    )
    assert torch.equal(
        method.predict(me, zeros)(x), head(mix(me.private["alpha"], torch.zeros_like(own), own))
    )


def test_numbers_that_travel():
    """CNN-5 without its head, 2.537 MiB each way."""
    task = replace(tiny(1).task, shared_builder=lambda: build_model("cnn-5", (3, 32, 32), 10))
    method = PFedAFM()
    numbers = SharedWeights(method.init_server(Context(task, 1, 1, 0, 1))).numel()
    assert numbers == 1216 + 12832 + 400500 + 250500 == 665_048
    assert round(4 * numbers / 2**20, 3) == 2.537


def test_another_feature_size_is_refused():
    with pytest.raises(PotluckError, match=r"client 0 'Net' has 3 features, the shared model 2\."):
        make_loop(PFedAFM(), tiny(shared_model=seeded_net(features=2)))


def test_the_mean_of_the_mixing_weights_is_on_record():
    recorder = Recorder()
    make_loop(PFedAFM(alpha_lr=1.0), tiny(2), rounds=3, callbacks=[recorder]).run()
    means = [step.record.notes["alpha"] for step in recorder.steps]
    alphas = [recorder.steps[-1].fetch(index)["private"]["alpha"].mean().item() for index in range(2)]
    assert means[-1] == pytest.approx(sum(alphas) / 2)
    assert means[0] != 1.0
    assert recorder.steps[-1].record.client_notes == {"alpha": pytest.approx(alphas)}
    assert alphas[0] != alphas[1]


def test_decay_pulls_the_mixing_weights_down():
    """As the released code does: a step of η·λ·α besides the gradient's."""
    alpha = torch.tensor([1.0, 0.5], requires_grad=True)
    alpha.grad = torch.zeros(2)
    PFedAFM(alpha_lr=0.1, alpha_decay=0.5).adapt(alpha)
    assert alpha.tolist() == pytest.approx([0.95, 0.475])


def test_at_the_default_rate_the_small_extractor_has_its_say(tmp_path: Path):
    """At the released code's 0.01 the weights stay above 0.9997 for four rounds, and the method is training alone."""
    settings = {"data": {"limit": 300}, "clients": 4, "models": "small-mlp", "engine": "serial", "rounds": 4}
    run = potluck.run("pfedafm", out=tmp_path / "run", **settings)
    means = [row["notes"]["alpha"] for row in run.rounds]
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.995


@pytest.mark.parametrize(("start", "alone"), [(0.0, "small"), (1.0, "large")])
def test_the_first_mixing_weights_choose_the_extractor(start: float, alone: str):
    """At 0 a client's head stands on the shared extractor and its own learns nothing; at 1 it is the private model."""
    fed = tiny(1, smooth=True, training=FULL_BATCH)
    method = PFedAFM(alpha_start=start, alpha_lr=1e-12)
    me, message = fed.client(0), first_message(fed, method)
    x = me.train.take(slice(None))[0]
    predictor = PFedAFM(predict_with=alone).predict(me, message)
    torch.testing.assert_close(method.predict(me, message)(x), predictor(x))
    before = {name: tensor.clone() for name, tensor in me.model.state_dict().items()}
    method.client(me, message)
    moved = {name for name, tensor in me.model.state_dict().items() if not torch.equal(before[name], tensor)}
    assert any(name.startswith("head.") for name in moved)
    assert any(not name.startswith("head.") for name in moved) == (start == 1)
    assert me.private["alpha"].tolist() == pytest.approx([start] * me.model.feature_dim)
