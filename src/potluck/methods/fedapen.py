"""FedAPEN (Qin et al., KDD 2023): mutual learning of a private and a shared model, and their learned ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.method import (
    Client,
    ClientInfo,
    ClientModel,
    Context,
    Method,
    Need,
    Predictor,
    Samples,
    SecureSums,
    Supports,
    Tensors,
    Update,
    kit,
    setting,
)


@dataclass
class FedAPEN(Method[Tensors, kit.SharedWeights, kit.SharedWeights]):
    """Each client weighs the scores of its private and of the shared model by a λ of its own.

    λ is learned on a part of the training data that the models do not see.
    """

    name: ClassVar[str] = "fedapen"
    summary: ClassVar[str] = "mutual learning with a shared model, and a learned ensemble of both"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS, Need.SHARED_MODEL})
    supports: ClassVar[Supports] = Supports(
        robust="the shared model's weights", max_share={"weight": "samples"}, sums=SecureSums()
    )

    adaptability: float = setting(0.05, "share of the training data that λ learns from", ge=0, lt=1)
    solve: Literal["exact", "sgd"] = setting(
        "exact", "how λ is learned: the best value (a convex problem), or SGD (the paper)"
    )
    steadiness: float = setting(
        0.0, "with exact: how strongly λ is held to one half, beside one held-out sample; 0: not at all", ge=0
    )
    lambda_lr: float = setting(0.001, "step of λ with sgd", gt=0)
    lambda_passes: int = setting(10, "passes of sgd", ge=0)
    train_with: Literal["learned", "equal", "plain"] = setting(
        "learned", "λ in the ensemble term of the losses: learned, 0.5, or no such term"
    )
    weight: kit.Weighting = setting(
        "uniform", "how clients count in the mean: all alike, or by training samples"
    )
    buffers: bool = setting(True, "average BatchNorm statistics as well")
    predict_with: Literal["ensemble", "private", "shared"] = setting("ensemble", "what is tested")

    def init_server(self, ctx: Context) -> Tensors:
        """Draw one random shared model for all."""
        return kit.tensors_of(ctx.task.shared_model(), buffers=self.buffers)

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> kit.SharedWeights:
        """Return the shared model."""
        return kit.SharedWeights(state)

    def client(self, me: Client, message: kit.SharedWeights) -> kit.SharedWeights:
        """Learn λ with the aggregate just received (the end of the paper's last round), then train both models."""
        shared = kit.load_shared_model(me, message.tensors)
        me.private["lambda"] = share = self._learned_share(me, shared)
        me.note("lambda", share)
        share = 0.5 if self.train_with == "equal" else share

        def loss(x: Tensor, y: Tensor) -> kit.LossParts:
            private_scores = me.model(x)
            private_loss, shared_loss = self.losses(private_scores, shared(x), y, share)
            return kit.LossParts(private_loss + shared_loss, cross_entropy(private_scores.detach(), y))

        me.fit_models({"model": me.model, "shared": shared}, loss, samples=self.split(me)[0])
        return kit.SharedWeights(kit.tensors_of(shared, buffers=self.buffers))

    def losses(self, private: Tensor, shared: Tensor, y: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return CE + KL + CE of the λ-ensemble for each model, the other one held fixed."""
        private_loss = cross_entropy(private, y) + kit.distillation(shared, private)
        shared_loss = cross_entropy(shared, y) + kit.distillation(private, shared)
        if self.train_with != "plain":
            private_loss = private_loss + cross_entropy(ensemble(share, private, shared.detach()), y)
            shared_loss = shared_loss + cross_entropy(ensemble(share, private.detach(), shared), y)
        return private_loss, shared_loss

    def split(self, me: Client) -> tuple[Samples, Samples]:
        """Split the training data into what the models learn from and what λ learns from, alike in every job."""
        total = len(me.train)
        order = torch.randperm(total, generator=kit.generator(me.task.seed, "adaptability", me.info.name))
        count = min(int(self.adaptability * total + 1e-9), total - 1)
        return me.train.select(order[count:]), me.train.select(order[:count])

    def _learned_share(self, me: Client, shared: ClientModel) -> float:
        """Return λ learned with this shared model; 0.5 before a client's first training or without data for it."""
        share: float = me.private.get("lambda", 0.5)
        samples = self.split(me)[1]
        if "lambda" not in me.private or not len(samples):
            return share
        me.model.eval()
        shared.eval()
        private_scores, shared_scores = (
            torch.cat([scores for scores, _ in me.outputs(model, samples)]) for model in (me.model, shared)
        )
        size, y = me.batch_size(samples), samples.labels.to(me.task.device)
        if self.solve == "exact":
            return best_share(private_scores, shared_scores, y, self.steadiness)
        batches = zip(*(torch.split(part, size) for part in (private_scores, shared_scores, y)), strict=True)
        return learn_share(share, list(batches), self.lambda_lr, self.lambda_passes)

    def server(self, state: Tensors, updates: Sequence[Update[kit.SharedWeights]], ctx: Context) -> Tensors:
        """Take the mean of the participants' shared models."""
        return kit.average(ctx, state, updates, "tensors", by=self.weight)

    def predict(self, me: Client, message: kit.SharedWeights | None) -> Predictor:
        """Return the ensemble as training left it, or with the shared model just received and a λ learned for it."""
        if self.predict_with == "private":
            return me.model
        shared = kit.copy_shared_model(me, None if message is None else message.tensors)
        if self.predict_with == "shared":
            return shared
        share = me.private.get("lambda", 0.5) if message is None else self._learned_share(me, shared)
        weight = torch.as_tensor(share, dtype=me.task.dtype, device=me.task.device)
        return Ensemble({"private": me.model, "shared": shared}, {"share": weight})


class Ensemble(kit.CombinedModel):
    """A weighted sum of two models' scores."""

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        return ensemble(self.tensor("share"), self.models["private"](x), self.models["shared"](x))


def ensemble(share: float | Tensor, private: Tensor, shared: Tensor) -> Tensor:
    """Return λ·o_private + (1-λ)·o_shared."""
    return share * private + (1 - share) * shared


def best_share(private: Tensor, shared: Tensor, y: Tensor, steadiness: float = 0.0) -> float:
    """Return the λ in [0, 1] with the smallest cross-entropy of the ensemble, by halving on the sign of its slope.

    Scores are linear in λ and cross-entropy is convex in them, so the slope rises with λ. Of n samples the loss is
    their mean plus κ/n·(λ−½)²: one or two alone would put λ at 0 or 1, many overrule it.
    """
    difference = (private - shared).double()
    target = difference.gather(1, y[:, None]).mean()
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        shares = (shared.double() + middle * difference).softmax(dim=1)
        penalty_slope = 2 * steadiness / len(y) * (middle - 0.5)
        if (shares * difference).sum(dim=1).mean() + penalty_slope > target:
            high = middle
        else:
            low = middle
    return (low + high) / 2


Batch = tuple[Tensor, Tensor, Tensor]


def learn_share(share: float, batches: Sequence[Batch], lr: float, passes: int) -> float:
    """Take SGD steps on the ensemble's cross-entropy over (private scores, shared scores, labels), λ kept in [0, 1].

    The models are fixed while λ is learned, so their scores are computed once for all passes.
    """
    weight = batches[0][0].new_tensor(share, requires_grad=True)
    for _ in range(passes):
        for private, shared, y in batches:
            with torch.enable_grad():
                loss = cross_entropy(ensemble(weight, private, shared), y)
            (gradient,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight.sub_(lr * gradient).clamp_(0, 1)
    return float(weight.detach())
