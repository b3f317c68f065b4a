"""FedL2G (Zhang et al., 2024): guiding vectors per class that learn to make local training better.

Two methods: the vectors guide logits (`fedl2g-l`) or features (`fedl2g-f`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from potluck.method import (
    Client,
    ClientInfo,
    ClientModel,
    Context,
    Labels,
    Method,
    Need,
    Payload,
    Samples,
    Shape,
    Supports,
    Tensors,
    Update,
    kit,
    setting,
)

Batch = tuple[Tensor, Tensor]
Outputs = Callable[[ClientModel, Tensor], tuple[Tensor, Tensor]]
"""(what is guided [B, M], class scores [B, C]) of a batch."""


@dataclass(frozen=True)
class Guides(Payload):
    """Server to client: v^c of every class."""

    vectors: Annotated[Tensor, Shape("classes", "width")]


@dataclass(frozen=True)
class LogitGradients(Payload):
    """Client to server: the rows of π that are not zero, with their classes."""

    rows: Annotated[Tensor, Shape("rows", "classes")]
    labels: Annotated[Tensor, Labels()]


@dataclass(frozen=True)
class FeatureGradients(Payload):
    """Client to server: the rows of π that are not zero, with their classes."""

    rows: Annotated[Tensor, Shape("rows", "features")]
    labels: Annotated[Tensor, Labels()]


@dataclass
class Guiding:
    """The settings of both methods and the work they share."""

    server_lr: float = setting(
        10.0, "step η_s of the guiding vectors (the paper, with 100 classes and guide_weight 1: 0.1)", gt=0
    )
    guide_weight: float = setting(
        0.1, "how much the distance to the vectors counts beside cross-entropy (the paper: 1)", gt=0
    )
    warm_up: int = setting(0, "first rounds in which only the vectors learn (the authors' code: 50)", ge=0)
    quiz: Literal["drawn", "kept"] = setting(
        "drawn", "a new quiz in every job, which that job does not train on, or (the paper) one for good"
    )
    quiz_size: int = setting(
        0,
        "samples of the quiz; 0: one batch, at most a fifth of a client's samples (the paper: one batch)",
        ge=0,
    )
    divide_by: Literal["senders", "participants"] = setting(
        "senders", "a class's gradients are averaged over who sent that class (Alg. 1), or over all (eq. 6)"
    )
    server_clip: float | None = setting(100.0, "longest averaged gradient; unset: any", gt=0)
    small_clients: Literal["half", "skip"] = setting(
        "half",
        "a client with less than a batch beside its quiz takes part (a quiz is at most half of it) or sits out",
    )

    def first_guides(self, ctx: Context, width: int) -> Tensor:
        """Draw v^c ~ N(0, 1)."""
        vectors = torch.randn(ctx.task.num_classes, width, generator=ctx.rng("guides"), dtype=ctx.task.dtype)
        return vectors.to(ctx.task.device)

    def learn(self, me: Client, guides: Tensor, outputs: Outputs) -> tuple[Tensor, Tensor]:
        """Train on the study set, then compute how the vectors should change (steps 2 to 5 of a round)."""
        quiz, study = self.split(me)
        empty = guides[:0], torch.zeros(0, dtype=torch.int64, device=guides.device)
        if self.small_clients == "skip" and len(study) < (me.training.batch_size or len(me.train)):
            return empty
        if me.round > self.warm_up:
            me.fit(guided_loss, guides, outputs, self.guide_weight, samples=study)  # eq. 4
        if not len(quiz):
            return empty
        batch, questions = next(me.batches(1, study)), me.prepare(*quiz.take(slice(None)))
        pi = guide_gradient(me.model, outputs, guides, batch, questions, me.lr, self.guide_weight)
        labels = pi.any(dim=1).nonzero()[:, 0]
        return pi[labels], labels

    def split(self, me: Client) -> tuple[Samples, Samples]:
        """Split the samples into the quiz set and the study set.

        They are drawn at random: rows are often ordered by class, and the first would be of the lowest classes alone.
        With a kept quiz a client never trains on these samples, which costs the smallest clients most.
        """
        count = len(me.train)
        stream = kit.generator(me.task.seed, "quiz", me.info.name) if self.quiz == "kept" else me.rng("quiz")
        rows = torch.randperm(count, generator=stream)
        size = self.quiz_count(count, me.batch_size())
        return me.train.select(rows[:size].sort().values), me.train.select(rows[size:].sort().values)

    def quiz_count(self, count: int, batch: int) -> int:
        """Return how many of a client's samples are its quiz."""
        if not self.quiz_size:
            return min(batch, max(count // 5, 1), count // 2)
        return self.quiz_size if self.small_clients == "skip" else min(self.quiz_size, count // 2)

    def move(self, guides: Tensor, updates: Sequence[Update[Any]], ctx: Context) -> Tensor:
        """v^c ← v^c − η_s · mean of the gradients sent for c (eq. 6); a class that no client sent stays."""
        mean = kit.mean_class_change(ctx, guides, updates, "rows", over=self.divide_by)
        if self.server_clip is not None:
            mean = mean * (self.server_clip / mean.norm().clamp(min=self.server_clip))
        moved = guides - self.server_lr * mean
        ctx.note("movement", float((moved - guides).norm() / guides.norm()))
        return moved


@dataclass
class FedL2GLogits(Guiding, Method[Tensor, Guides, LogitGradients]):
    """Guiding vectors in the space of logits."""

    name: ClassVar[str] = "fedl2g-l"
    summary: ClassVar[str] = "learned guiding vectors for the logits"
    supports: ClassVar[Supports] = Supports(
        robust="the gradients of each guiding vector",
        single_answers="it divides the gradients of a guiding vector by its senders",
    )

    def init_server(self, ctx: Context) -> Tensor:
        """Draw random vectors of one entry per class."""
        return self.first_guides(ctx, ctx.task.num_classes)

    def broadcast(self, state: Tensor, client: ClientInfo, ctx: Context) -> Guides:
        """Return all guiding vectors."""
        return Guides(state)

    def client(self, me: Client, message: Guides) -> LogitGradients:
        """Train with guidance, send π."""
        return LogitGradients(*self.learn(me, message.vectors, guide_logits))

    def server(self, state: Tensor, updates: Sequence[Update[LogitGradients]], ctx: Context) -> Tensor:
        """Return one gradient step on the vectors."""
        return self.move(state, updates, ctx)


@dataclass
class FedL2GFeatures(Guiding, Method[Tensor, Guides, FeatureGradients]):
    """Guiding vectors in the space of features, of a common size."""

    name: ClassVar[str] = "fedl2g-f"
    summary: ClassVar[str] = "learned guiding vectors for the features"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.EQUAL_FEATURES})
    supports: ClassVar[Supports] = Supports(
        robust="the gradients of each guiding vector",
        single_answers="it divides the gradients of a guiding vector by its senders",
    )

    server_lr: float = setting(
        100.0, "step η_s of the guiding vectors (the paper, with 512 features and guide_weight 1: 100)", gt=0
    )

    def init_server(self, ctx: Context) -> Tensor:
        """Draw random vectors of the common feature size."""
        return self.first_guides(ctx, ctx.task.feature_dim or 0)

    def broadcast(self, state: Tensor, client: ClientInfo, ctx: Context) -> Guides:
        """Return all guiding vectors."""
        return Guides(state)

    def client(self, me: Client, message: Guides) -> FeatureGradients:
        """Train with guidance, send π."""
        return FeatureGradients(*self.learn(me, message.vectors, guide_features))

    def server(self, state: Tensor, updates: Sequence[Update[FeatureGradients]], ctx: Context) -> Tensor:
        """Return one gradient step on the vectors."""
        return self.move(state, updates, ctx)


def guide_logits(model: ClientModel, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits as what is guided, and as scores."""
    scores = model(x)
    return scores, scores


def guide_features(model: ClientModel, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features as what is guided, and the scores."""
    features = model.features(x)
    return features, model.head(features)


def guided_loss(
    model: ClientModel, x: Tensor, y: Tensor, guides: Tensor, outputs: Outputs, weight: float
) -> kit.LossParts:
    """Return the mean cross-entropy plus the weighted mean squared distance to the class's guiding vector (eq. 4)."""
    guided, scores = outputs(model, x)
    label_loss = cross_entropy(scores, y)
    return kit.LossParts(label_loss + weight * (guided - guides[y]).square().mean(), label_loss)


def guide_gradient(
    model: ClientModel,
    outputs: Outputs,
    guides: Tensor,
    study: Batch,
    quiz: Batch,
    lr: float,
    weight: float = 1.0,
) -> Tensor:
    """Return π = dCE(θ'; quiz)/dG with θ' = θ − η_c ∇L(θ; G, study), exactly and without second derivatives.

    The guide term's gradient is linear in G, so π^c = 2λη_c/(M·B) Σ_{study, y=c} J(x)·∇CE(θ'; quiz), where J
    is the derivative of what is guided and λ its weight: one product in forward mode (eq. 7; eq. 9 drops factors).
    """
    parameters: Tensors = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def quiz_loss(tensors: Tensors) -> Tensor:
        return cross_entropy(kit.call_with_tensors(model, tensors, outputs, quiz[0])[1], quiz[1])

    def guided(tensors: Tensors) -> Tensor:
        vectors: Tensor = kit.call_with_tensors(model, tensors, outputs, study[0])[0]
        return vectors

    with pure_training_mode(model, single=min(len(study[1]), len(quiz[1])) == 1):
        direction = grad(quiz_loss)(pseudo_step(model, parameters, outputs, guides, study, lr, weight))
        pushed = along(guided, parameters, direction)
    pi = torch.zeros_like(guides).index_add_(0, study[1], pushed.detach())
    return pi * (2 * weight * lr / (guides.shape[1] * len(study[1])))


def along(function: Callable[[Tensors], Tensor], point: Tensors, direction: Tensors) -> Tensor:
    """Return J·direction, the derivative of `function` at a point along a direction.

    Some layers have no derivative in forward mode: torch's fused LSTM for CPUs, its fused attention. Then it is the
    derivative of v ↦ Jᵀv, which is linear in v, applied to the direction: two products in reverse mode give the same.
    Fused attention has no second derivative either; its plain computation does.
    """
    try:
        pushed: Tensor = jvp(function, (point,), (direction,))[1]
        return pushed
    except NotImplementedError:
        with sdpa_kernel(SDPBackend.MATH):
            value, pull, *_ = vjp(function, point)
            product: Tensor = vjp(lambda v: pull(v)[0], torch.zeros_like(value))[1](direction)[0]
        return product


def pseudo_step(
    model: ClientModel,
    parameters: Tensors,
    outputs: Outputs,
    guides: Tensor,
    study: Batch,
    lr: float,
    weight: float = 1.0,
) -> Tensors:
    """Return θ' = θ − η_c ∇L(θ; G, study) (eq. 5), while the model keeps θ."""

    def study_loss(tensors: Tensors) -> Tensor:
        loss: kit.LossParts = kit.call_with_tensors(
            model, tensors, guided_loss, *study, guides, outputs, weight
        )
        return loss.objective

    gradient = grad(study_loss)(parameters)
    return {name: tensor - lr * gradient[name] for name, tensor in parameters.items()}


@contextmanager
def pure_training_mode(model: nn.Module, *, single: bool) -> Iterator[None]:
    """Set train mode for a block without side effects: normalisation uses the batch and keeps no statistics.

    Where a batch has one sample there is nothing to normalise over, and the kept statistics are used.
    """
    layers = kit.normalisation_layers(model)
    tracking = [layer.track_running_stats for layer in layers]
    model.train()
    for layer in layers:
        layer.track_running_stats = single and layer.track_running_stats
    try:
        with kit.batch_norm_in_eval_mode(*[model] * single):
            yield
    finally:
        for layer, before in zip(layers, tracking, strict=True):
            layer.track_running_stats = before
        model.eval()
