"""FedAPEN (Qin et al., KDD 2023): mutual learning of a private and a shared model, and their learned ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.core.client import Client
from potluck.core.composite import Composite
from potluck.core.method import Method, Need, Predictor, Update
from potluck.core.model import ClientModel
from potluck.core.payload import Tensors
from potluck.core.random import generator
from potluck.core.samples import Samples
from potluck.core.shared_model import SharedWeights, as_received, average, fit_together, own_copy
from potluck.core.sharing import Weighting
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import distillation, tensors_of


@dataclass
class FedAPEN(Method[Tensors, SharedWeights, SharedWeights]):
    """Each client weighs the scores of its private and of the shared model by a λ of its own.

    λ is learned on a part of the training data that the models do not see (`adaptability`), by `lambda_passes`
    over it with the step `lambda_lr`. `train_with`: the `learned` λ in the ensemble term of the losses, an
    `equal` one of 0.5, or `plain` mutual learning without that term. `weight`: the mean over clients, plain or
    by samples. `buffers` averages BatchNorm statistics as well. `predict_with`: what is tested.
    """

    name: ClassVar[str] = "fedapen"
    summary: ClassVar[str] = "mutual learning with a shared model, and a learned ensemble of both"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS, Need.SHARED_MODEL})
    own_steps: ClassVar[bool] = True

    adaptability: float = 0.05
    lambda_lr: float = 0.001
    lambda_passes: int = 10
    train_with: Literal["learned", "equal", "plain"] = "learned"
    weight: Weighting = "uniform"
    buffers: bool = True
    predict_with: Literal["ensemble", "private", "shared"] = "ensemble"

    def init_server(self, ctx: Context) -> Tensors:
        """One random shared model for all."""
        return tensors_of(ctx.task.shared_model(), buffers=self.buffers)

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> SharedWeights:
        """The shared model."""
        return SharedWeights(state)

    def client(self, me: Client, message: SharedWeights) -> SharedWeights:
        """Learn λ with the aggregate just received (the end of the paper's last round), then train both models."""
        shared = own_copy(me, message.tensors)
        me.private["lambda"] = share = self._learned_share(me, shared)
        share = 0.5 if self.train_with == "equal" else share

        def loss(x: Tensor, y: Tensor) -> Tensor:
            private_loss, shared_loss = self.losses(me.model(x), shared(x), y, share)
            return private_loss + shared_loss

        fit_together(me, {"model": me.model, "shared": shared}, loss, self.split(me)[0])
        return SharedWeights(tensors_of(shared, buffers=self.buffers))

    def losses(self, private: Tensor, shared: Tensor, y: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """CE + KL + CE of the λ-ensemble for each model, the other one held fixed."""
        private_loss = cross_entropy(private, y) + distillation(shared, private)
        shared_loss = cross_entropy(shared, y) + distillation(private, shared)
        if self.train_with != "plain":
            private_loss = private_loss + cross_entropy(ensemble(share, private, shared.detach()), y)
            shared_loss = shared_loss + cross_entropy(ensemble(share, private.detach(), shared), y)
        return private_loss, shared_loss

    def split(self, me: Client) -> tuple[Samples, Samples]:
        """The training data in two: what the models learn from, and what λ learns from. The same in every job."""
        total = len(me.train)
        order = torch.randperm(total, generator=generator(me.task.seed, "adaptability", me.info.name))
        count = min(int(self.adaptability * total + 1e-9), total - 1)
        return me.train.select(order[count:]), me.train.select(order[:count])

    def _learned_share(self, me: Client, shared: ClientModel) -> float:
        """λ after learning with this shared model; 0.5 before a client's first training or without data for it."""
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
        batches = zip(*(torch.split(part, size) for part in (private_scores, shared_scores, y)), strict=True)
        return learn_share(share, list(batches), self.lambda_lr, self.lambda_passes)

    def server(self, state: Tensors, updates: Sequence[Update[SharedWeights]], ctx: Context) -> Tensors:
        """The mean of the participants' shared models."""
        return average(state, updates, [update.payload.tensors for update in updates], self.weight)

    def predict(self, me: Client, message: SharedWeights | None) -> Predictor:
        """The ensemble as training left it, or with the shared model just received and a λ learned for it."""
        if self.predict_with == "private":
            return me.model
        shared = as_received(me, None if message is None else message.tensors)
        if self.predict_with == "shared":
            return shared
        share = me.private.get("lambda", 0.5) if message is None else self._learned_share(me, shared)
        weight = torch.as_tensor(share, dtype=me.task.dtype, device=me.task.device)
        return Composite("ensemble", {"private": me.model, "shared": shared}, {"share": weight})


def ensemble(share: float | Tensor, private: Tensor, shared: Tensor) -> Tensor:
    """λ·o_private + (1-λ)·o_shared."""
    return share * private + (1 - share) * shared


Batch = tuple[Tensor, Tensor, Tensor]


def learn_share(share: float, batches: Sequence[Batch], lr: float, passes: int) -> float:
    """SGD on the ensemble's cross-entropy over (private scores, shared scores, labels), λ kept in [0, 1].

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
