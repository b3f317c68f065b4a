"""Second readings of FedGH, FedHe and pFedAFM against plain float64 simulations of two rounds."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.client import Client
from potluck.core.task import Context
from potluck.core.training import Training
from potluck.kit import ClassTable, OptionalHead
from potluck.loop.loop import Loop
from potluck.loop.schedule import Evaluation
from potluck.methods.fedgh import FedGH
from potluck.methods.fedhe import FedHe, distilled_loss
from potluck.methods.pfedafm import PFedAFM
from potluck.methods.standalone import Standalone
from support.tiny import Recorder, answer, context, make_loop, same, tiny, weights

LR, SERVER_LR = 0.1, 0.5
FULL_BATCH = Training(epochs=1, batch_size=0, lr=LR)
CLASSES = 3


def descend(parts: list[Tensor], loss: Tensor, lr: float) -> None:
    """One plain gradient step."""
    for tensor, slope in zip(parts, torch.autograd.grad(loss, parts), strict=True):
        tensor.data -= lr * slope


def agree(module: nn.Module, twin: nn.Module) -> bool:
    pairs = zip(module.state_dict().values(), twin.state_dict().values(), strict=True)
    return all(torch.allclose(actual, expected, rtol=0, atol=1e-13) for actual, expected in pairs)


def trained(loop: Loop, number: int, like: nn.Module) -> nn.Module:
    """A client's model at the end of a run."""
    flat = loop.dispatcher.fetch(number, loop.server.context()).tensors
    model = copy.deepcopy(like)
    model.load_state_dict({name: flat[f"/model/{name}"] for name in model.state_dict()})
    return model


# -- FedGH -------------------------------------------------------------------------------------------------


def simulate_fedgh(fed: Any, header: nn.Linear, mode: str, first: str, share: float) -> list[nn.Module]:
    """Eqs. 3 to 6 for two rounds of two clients with full batches; the header is trained in place."""
    clients = [fed.client(index) for index in range(2)]
    for number in range(2):
        sent = []
        for me in clients:
            own = me.model.head
            if number or first == "global":
                for name, tensor in header.state_dict().items():
                    mixed = (1 - share) * tensor + share * own.state_dict()[name]
                    own.get_parameter(name).data = mixed.clone()
            x, y = me.train.take(slice(None))
            descend(list(me.model.parameters()), F.cross_entropy(me.model(x), y), LR)
            means = [(me.model.features(x[y == c]).mean(0).detach(), c) for c in range(CLASSES)]
            sent += [means] if mode == "per_client" else [[mean] for mean in means]
        for step in sent:
            scores = header(torch.stack([mean for mean, _ in step]))
            loss = F.cross_entropy(scores, torch.tensor([label for _, label in step]))
            descend(list(header.parameters()), loss, SERVER_LR)
    return [me.model for me in clients]


@pytest.mark.parametrize("mode", ["per_mean", "per_client"])
@pytest.mark.parametrize(("first", "share"), [("own", 0.0), ("global", 0.3), ("own", 0.3), ("global", 0.0)])
def test_fedgh_with_own_first_headers_and_mixed_headers(mode: Any, first: Any, share: float):
    fed, recorder = tiny(2, smooth=True, training=FULL_BATCH), Recorder()
    method = FedGH(server_lr=SERVER_LR, server_mode=mode, first_header=first, own_header=share)
    loop = make_loop(method, fed, rounds=2, callbacks=[recorder])
    loop.run()
    header = method.init_server(Context(fed.task, 1, 2, fed.task.seed))
    models = simulate_fedgh(fed, header, mode, first, share)
    assert agree(recorder.end.state, header)
    for number, model in enumerate(models):
        assert agree(trained(loop, number, model), model)
    sent = [message.weights is None for _, _, message in recorder.sent]
    assert sent == ([True, True, False, False] if first == "own" else [False] * 4)
    assert [message.numel() for _, _, message in recorder.sent][2:] == [3 * CLASSES + CLASSES] * 2


def test_a_header_all_of_the_clients_own_is_standalone_bit_for_bit():
    fed = tiny(3, smooth=True)
    runs = []
    for method in (FedGH(own_header=1.0), Standalone()):
        loop = make_loop(method, fed, rounds=2)
        loop.run()
        runs.append([loop.dispatcher.fetch(n, loop.server.context()).tensors for n in range(3)])
    for mixed, alone in zip(*runs, strict=True):
        assert same({n: t for n, t in mixed.items() if n.startswith("/model")}, alone)


def test_a_mixed_header_is_tested_as_received():
    """Own bias (0, 0, 0), received (0, 9, 0), a third of the own: 6."""
    me = tiny(1).client(0)
    with torch.no_grad():
        me.model.head.weight.zero_()
        me.model.head.bias.zero_()
    received = {"weight": torch.zeros(3, 3).double(), "bias": torch.tensor([0.0, 9.0, 0.0]).double()}
    predictor = FedGH(own_header=1 / 3).predict(me, OptionalHead(received))
    assert predictor(me.train.take(slice(0, 1))[0])[0].tolist() == pytest.approx([0.0, 6.0, 0.0])
    assert FedGH().predict(me, OptionalHead(None)) is me.model


def test_an_own_first_header_is_tested_with_the_one_trained_meanwhile():
    fed, recorder = tiny(2, training=FULL_BATCH), Recorder()
    evaluation = Evaluation("local", ("received",))
    make_loop(FedGH(first_header="own"), fed, rounds=1, callbacks=[recorder], evaluation=evaluation).run()
    me = fed.client(0)
    first = FedGH(first_header="own").broadcast(recorder.end.state, me.info, context(fed))
    assert first.weights is None
    tested = FedGH(first_header="own").broadcast(
        recorder.end.state, me.info, replace(context(fed), testing=True)
    )
    assert torch.equal(tested.weights["weight"], recorder.end.state.weight)
    assert recorder.steps[0].record.accuracy_received is not None
    assert recorder.steps[0].record.floats_down == 0
    assert FedGH().paper_accounting(first, recorder.updates[0][1].payload).down == 0


# -- FedHe -------------------------------------------------------------------------------------------------


def test_fedhe_with_the_kl_distance_of_one_sample():
    """o = (2, 0), p = (1, 1), y = 0: CE 0.126928 and KL(½, ½ ‖ σ(o)) = −log 2 + (0.126928 + 2.126928)/2."""
    o, y = torch.tensor([[2.0, 0.0]]).double(), torch.tensor([0])
    for has_knowledge, pull in ((True, 0.433781), (False, 0.0)):
        table = ClassTable(torch.ones(2, 2).double(), torch.tensor([has_knowledge, True]))
        loss = distilled_loss(nn.Identity(), o, y, table, 2.0, "kl")
        assert loss.objective.item() == pytest.approx(0.126928 + 2 * pull, abs=1e-6)
        assert loss.cross_entropy.item() == pytest.approx(0.126928, abs=1e-6)


class FedHeByHand:
    """Eqs. 7 to 10 and 13 with KL(σ(p_s) ‖ σ(o)) as the distance of logits."""

    def __init__(self, fed: Any, clients: int) -> None:
        self.clients = [fed.client(index) for index in range(clients)]
        self.stored: dict[int, list[Tensor]] = {c: [] for c in range(CLASSES)}

    def message(self) -> dict[int, Tensor]:
        return {c: torch.stack(rows).mean(0) for c, rows in self.stored.items() if rows}

    def job(self, index: int, message: dict[int, Tensor]) -> dict[int, Tensor]:
        me = self.clients[index]
        x, y = me.train.take(slice(None))
        logits, pull = me.model(x), torch.zeros(()).double()
        for row, label in zip(logits, y.tolist(), strict=True):
            if label in message:
                teacher = message[label].softmax(0)
                pull = pull + (teacher * (teacher.log() - row.log_softmax(0))).sum() / len(y)
        sums = {c: logits[y == c].sum(0).detach() / (int((y == c).sum()) + 1) for c in set(y.tolist())}
        descend(list(me.model.parameters()), F.cross_entropy(logits, y) + 0.7 * pull, LR)
        return sums

    def store(self, sent: dict[int, Tensor]) -> None:
        for c, row in sent.items():
            self.stored[c].append(row)


@pytest.mark.parametrize("schedule", [{}, {"buffer": 1, "concurrency": 1}], ids=["sync", "async"])
def test_fedhe_with_the_kl_distance(schedule: dict[str, Any]):
    fed, recorder = tiny(2, smooth=True, training=FULL_BATCH, classes_of=[None, (0, 2)]), Recorder()
    loop = make_loop(
        FedHe(distance="kl", distillation_weight=0.7), fed, rounds=3, callbacks=[recorder], **schedule
    )
    loop.run()
    hand = FedHeByHand(fed, 2)
    if schedule:
        for _, index, _ in recorder.sent:
            hand.store(hand.job(index, hand.message()))
    else:
        for _ in range(3):
            message = hand.message()
            for sent in [hand.job(index, message) for index in range(2)]:
                hand.store(sent)
    for number, me in enumerate(hand.clients):
        assert agree(trained(loop, number, me.model), me.model)
    final = FedHe().broadcast(recorder.end.state, fed.task.clients[0], context(fed))
    assert torch.allclose(final.rows, torch.stack(list(hand.message().values())), rtol=0, atol=1e-13)


# -- pFedAFM -----------------------------------------------------------------------------------------------

STEPS = Training(epochs=2, batch_size=6, lr=LR, momentum=0.9, weight_decay=0.01)


def simulate_pfedafm(me: Client, small: Any, turns: str, clamp: bool, rate: float) -> Tensor:
    """Both steps batch by batch or epoch by epoch, with an optimiser each; returns α."""
    alpha = torch.ones(3, dtype=torch.float64, requires_grad=True)
    large, extractor = me.model, [p for name, p in small.named_parameters() if not name.startswith("head.")]
    of_large, of_small = (
        torch.optim.SGD(parts, LR, momentum=0.9, weight_decay=0.01)
        for parts in (list(large.parameters()), extractor)
    )

    def first(x: Tensor, y: Tensor) -> None:
        mixed = (1 - alpha) * small.features(x).detach() + alpha * large.features(x)
        of_large.zero_grad()
        alpha.grad = None
        F.cross_entropy(large.head(mixed), y).backward()
        of_large.step()
        alpha.data = alpha.data - rate * alpha.grad
        if clamp:
            alpha.data = alpha.data.clamp(0, 1)

    def second(x: Tensor, y: Tensor) -> None:
        of_small.zero_grad()
        F.cross_entropy(large.head(small.features(x)), y).backward()
        of_small.step()

    me.begin("train", 0, 1, 1)
    for _ in range(2):
        if turns == "epoch":
            for step in (first, second):
                for x, y in list(me.batches(1)):
                    step(x, y)
            continue
        for x, y in list(me.batches(1)):
            first(x, y)
            second(x, y)
    return alpha.detach()


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("turns", ["epoch", "batch"])
def test_pfedafm_with_steps_in_turns(turns: Any, clamp: bool):
    fed, rate = tiny(1, smooth=True, training=STEPS), 9.0
    method = PFedAFM(alpha_lr=rate, turns=turns, clamp=clamp)
    me, twin, small = fed.client(0), fed.client(0), fed.task.shared_model()
    first = method.broadcast(method.init_server(context(fed)), me.info, context(fed))
    upload = answer(method, me, first).tensors
    alpha = simulate_pfedafm(twin, small, turns, clamp, rate)
    assert torch.allclose(me.private["alpha"], alpha, rtol=0, atol=1e-13)
    assert bool(((alpha < 0) | (alpha > 1)).any()) is not clamp
    assert agree(me.model, twin.model)
    assert upload.keys() == {name for name in small.state_dict() if not name.startswith("head.")}
    assert all(torch.allclose(upload[n], small.state_dict()[n], rtol=0, atol=1e-13) for n in upload)
    assert me.trained_samples == 2 * 2 * 12
    assert me.train_ce == me.train_loss


def test_pfedafm_with_one_epoch_alternates_equally_by_epoch_and_by_round():
    results = []
    for turns in ("round", "epoch", "batch"):
        fed = tiny(1, norm=True, training=Training(epochs=1, batch_size=6, lr=LR))
        me, method = fed.client(0), PFedAFM(turns=turns)
        first = method.broadcast(method.init_server(context(fed)), me.info, context(fed))
        results.append((weights(me), answer(method, me, first).tensors, me.train_loss))
    by_round, by_epoch, by_batch = results
    assert same(by_round[0], by_epoch[0])
    assert same(by_round[1], by_epoch[1])
    assert by_round[2] == pytest.approx(by_epoch[2])
    assert not same(by_round[1], by_batch[1])
