"""Row-level privacy of methods that use rows in several ways: the influence of one row by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.samples import Samples
from potluck.core.training import Training
from potluck.kit import ClassVectors, SharedWeights
from potluck.methods.fedhe import FedHe
from potluck.methods.pfedafm import PFedAFM, mix
from potluck.privacy.rows import RecordPrivacy
from potluck.privacy.settings import Privacy
from support.tiny import context, tiny

WHOLE = Training(epochs=1, batch_size=0, lr=0.5)
FAR = torch.tensor([300.0, -200.0, 100.0, 50.0], dtype=torch.float64)


def client(*, outlier: bool = False, training: Training = WHOLE, fits: int = 1, **settings: Any) -> Client:
    """A client of twelve rows, or thirteen with one that is unlike all others, under the guard of a job."""
    me = tiny(1, sizes=(12,), training=training, smooth=True).client(0)
    if outlier:
        x, y = me.train.take(slice(None))
        me.train = Samples(torch.cat([x, FAR[None]]), torch.cat([y, torch.tensor([0])]))
    me.begin("train", 0, 1, 1)
    guard = RecordPrivacy(Privacy(unit="record", **{"clip": 0.3, **settings}), me, fits)
    me.trainer, me.private_class_means = guard.train, guard.class_means
    return me


def clipped_sum(
    loss: Callable[[Tensor, Tensor], Tensor], over: list[Tensor], me: Client, clip: float
) -> list[Tensor]:
    """Σ g_i · min(1, C/|g_i|), a row's gradient over all tensors taken as one vector."""
    total = [torch.zeros_like(tensor) for tensor in over]
    x, y = me.prepare(*me.train.take(slice(None)))
    for row in range(len(y)):
        gradients = torch.autograd.grad(loss(x[row : row + 1], y[row : row + 1]), over)
        length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        for place, tensor_gradient in enumerate(gradients):
            total[place] += min(1.0, clip / length) * tensor_gradient
    return total


# -- FedHe ----------------------------------------------------------------------------------------------------


def rows_of(me: Client) -> ClassVectors:
    return ClassVectors(torch.eye(3, dtype=torch.float64), torch.arange(3))


def test_fedhe_trains_on_clipped_gradients_of_both_terms_and_sends_clipped_logits():
    me = client(vector_clip=0.4)
    start = copy.deepcopy(me.model)
    table = torch.eye(3, dtype=torch.float64)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        logits = start(x)
        return cross_entropy(logits, y) + 2.0 * (logits - table[y]).square().mean()

    total = clipped_sum(loss, list(start.parameters()), me, 0.3)
    answer = FedHe(collect="after", distillation_weight=2.0).client(me, rows_of(me))
    for new, old, step in zip(me.model.parameters(), start.parameters(), total, strict=True):
        assert torch.allclose(new, old - 0.5 * step / 12, atol=1e-12)
    x, y = me.prepare(*me.train.take(slice(None)))
    logits = me.model(x).detach()
    lengths = logits.norm(dim=1, keepdim=True)
    assert bool((lengths > 0.4).any())
    logits = logits * (0.4 / lengths).clamp(max=1)
    for label in range(3):  # four rows of each class, divided by V + 1 (eq. 8)
        assert torch.allclose(answer.rows[label], logits[y == label].sum(dim=0) / 5, atol=1e-12)


def test_one_row_moves_the_sum_of_logits_by_no_more_than_its_bound():
    """The sum moves by the bound, the count by one: together √2 of the noise's unit, which the accounts know."""
    sums = []
    for outlier in (False, True):
        me = client(outlier=outlier, vector_clip=0.4)
        means, _, counts = me.class_means(me.model)
        sums.append((means * counts[:, None], counts))
    moved = sums[1][0] - sums[0][0]
    assert moved.norm().item() == pytest.approx(0.4)  # it is as long as a row may be
    assert (sums[1][1] - sums[0][1]).tolist() == [1, 0, 0]


def test_logits_after_training_are_those_of_every_row_once():
    """Without a guard: the plain mean of the trained model's logits, times V/(V+1)."""
    me = client()
    me.trainer = me.private_class_means = None
    answer = FedHe(collect="after").client(me, rows_of(me))
    x, y = me.prepare(*me.train.take(slice(None)))
    with torch.no_grad():
        logits = me.model(x)
    for label in range(3):
        assert torch.allclose(answer.rows[label], logits[y == label].sum(dim=0) / 5, atol=1e-12)
    few = client()
    few.trainer = few.private_class_means = None
    FedHe(collect="after", inner_batches=2).client(few, rows_of(few))
    assert few.trained_samples == 24  # two batches, which are all rows here


# -- pFedAFM --------------------------------------------------------------------------------------------------


def received(me: Client) -> SharedWeights:
    fed = tiny(1, smooth=True)
    method = PFedAFM()
    return method.broadcast(method.init_server(context(fed)), me.info, context(fed))


def test_both_phases_of_pfedafm_by_hand():
    """Large model and mixing weights are one vector to the clip; then the small extractor, before the new head."""
    me = client(fits=2)
    small, large = me.task.shared_model(), copy.deepcopy(me.model)
    alpha = torch.full((3,), 0.5, dtype=torch.float64, requires_grad=True)
    me.private["alpha"] = alpha.detach().clone()

    def first(x: Tensor, y: Tensor) -> Tensor:
        mixed = mix(alpha, small.features(x).detach(), large.features(x))
        return cross_entropy(large.head(mixed), y)

    total = clipped_sum(first, [*large.parameters(), alpha], me, 0.3)
    method = PFedAFM(alpha_lr=0.2)
    answer = method.client(me, received(me)).tensors
    for new, old, step in zip(me.model.parameters(), large.parameters(), total, strict=False):
        assert torch.allclose(new, old - 0.5 * step / 12, atol=1e-12)
    assert torch.allclose(me.private["alpha"], alpha - 0.2 * total[-1] / 12, atol=1e-12)
    extractor = [parameter for name, parameter in small.named_parameters() if not name.startswith("head.")]
    total = clipped_sum(lambda x, y: cross_entropy(me.model.head(small.features(x)), y), extractor, me, 0.3)
    for new, old, step in zip(answer.values(), extractor, total, strict=True):
        assert torch.allclose(new, old - 0.5 * step / 12, atol=1e-12)
    assert me.train_loss is None


def test_one_row_moves_large_model_and_mixing_weights_by_one_bound_together():
    """C for both as one vector; clipped apart, a row could move them by √2 · C, and the accounts would be wrong."""
    sums = []
    for outlier in (False, True):
        me = client(outlier=outlier, fits=2)
        before = [parameter.detach().clone() for parameter in me.model.parameters()]
        me.private["alpha"] = torch.full((3,), 0.5, dtype=torch.float64)
        PFedAFM(alpha_lr=0.2, clamp=False).client(me, received(me))
        steps = [(old - new) / 0.5 for old, new in zip(before, me.model.parameters(), strict=True)]
        steps.append((0.5 - me.private["alpha"]) / 0.2)
        sums.append(torch.cat([len(me.train) * tensor.detach().flatten() for tensor in steps]))
    assert (sums[1] - sums[0]).norm().item() == pytest.approx(0.3, abs=1e-9)


def test_both_phases_have_noise():
    """Gradients clipped to almost nothing: all that moves is noise, in the large model, in α and in what leaves."""
    me = client(fits=2, clip=1e-8, noise_multiplier=300.0, training=Training(epochs=40, batch_size=0, lr=1.0))
    before = torch.cat([parameter.detach().flatten() for parameter in me.model.parameters()])
    message = received(me)
    answer = PFedAFM(alpha_lr=1.0, clamp=False).client(me, message).tensors
    size = math.sqrt(40) * 3e-6 / 12  # a walk of forty steps
    large = torch.cat([parameter.detach().flatten() for parameter in me.model.parameters()]) - before
    sent = torch.cat([(answer[name] - message.tensors[name]).flatten() for name in answer])
    assert large.std().item() == pytest.approx(size, rel=0.4)
    assert sent.std().item() == pytest.approx(size, rel=0.4)
    assert 0.1 * size < (me.private["alpha"] - 1).abs().max().item() < 5 * size


def test_a_job_that_looks_at_its_rows_more_often_than_the_accounts_say_is_stopped():
    with pytest.raises(PotluckError, match="no place in its accounts for so many rounds of training"):
        PFedAFM().client(me := client(fits=1), received(me))
    me = client()
    me.class_means(me.model)
    with pytest.raises(PotluckError, match="no place in its accounts for so many rounds of class means"):
        me.class_means(me.model)
    with pytest.raises(PotluckError, match="in epochs and batches as set"):
        client().fit(epochs=3)
