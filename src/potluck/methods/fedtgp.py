"""FedTGP (Zhang et al., AAAI 2024): prototypes trained on the server, kept apart by an adaptive margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from potluck.method import (
    Client,
    ClientInfo,
    Context,
    Method,
    Need,
    Payload,
    Predictor,
    Shape,
    Supports,
    Update,
    kit,
    setting,
)


@dataclass(frozen=True)
class GlobalPrototypes(Payload):
    """Server to client: p_c of all classes, or nothing before the first server step."""

    prototypes: Annotated[Tensor, Shape("classes", "features")] | None


class TrainablePrototypes(nn.Module):
    """One embedding per class, and a small network that turns it into the prototype p_c."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
        """Return all prototypes, `[C, K]`."""
        prototypes: Tensor = self.transform(self.embedding.weight)
        return prototypes


@dataclass
class Prototypes:
    """Server: the trainable prototypes, and whether they have been trained."""

    module: TrainablePrototypes
    trained: bool


@dataclass
class FedTGP(Method[Prototypes, GlobalPrototypes, kit.ClassMeans]):
    """Local training as in FedProto, towards prototypes that the server trained to be far apart."""

    name: ClassVar[str] = "fedtgp"
    summary: ClassVar[str] = "features drawn to prototypes that the server trains apart"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.EQUAL_FEATURES})
    supports: ClassVar[Supports] = Supports(
        robust="class means that train the prototypes",
        row_privacy=True,
        single_answers="it trains prototypes on the class means of each client",
    )

    prototype_weight: float = setting(
        0.1, "weight λ of the distance, which is a mean over the features (its authors: 10)", ge=0
    )
    threshold: float = setting(100.0, "largest margin τ", ge=0)
    margin: Literal["adaptive", "fixed", "none"] = setting(
        "adaptive",
        "the margin: the largest distance of a class mean to its nearest neighbour, τ itself, or none",
    )
    server_epochs: int = setting(100, "passes over the class means in which the prototypes learn", ge=0)
    server_batch: int = setting(10, "class means per step", ge=1)
    server_lr: float | None = setting(None, "step of the prototypes; unset: the clients' learning rate", gt=0)
    prediction: Literal["head", "proto_all"] = setting(
        "head", "what is tested: the head, or the nearest prototype of all classes (its authors)"
    )

    def init_server(self, ctx: Context) -> Prototypes:
        """Draw random prototypes, which are not sent before they have been trained."""
        classes, width = ctx.task.num_classes, ctx.task.feature_dim or 0
        return Prototypes(ctx.module("prototypes", lambda: TrainablePrototypes(classes, width)), False)

    def broadcast(self, state: Prototypes, client: ClientInfo, ctx: Context) -> GlobalPrototypes:
        """p_c of all classes, also of those that no client has sent."""
        return GlobalPrototypes(state.module().detach() if state.trained else None)

    def client(self, me: Client, message: GlobalPrototypes) -> kit.ClassMeans:
        """Train towards labels and prototypes; the class means are those of the trained model."""
        if message.prototypes is None:
            me.fit()
        else:
            table = kit.ClassTable.full(message.prototypes)
            if self.prediction == "proto_all":
                me.private["prototypes"] = table.rows.clone()
            me.fit(kit.prototype_loss, table.rows, table.known, self.prototype_weight)
        means, labels, _ = me.class_means(me.model.features)
        return kit.ClassMeans(means, labels)

    def server(
        self, state: Prototypes, updates: Sequence[Update[kit.ClassMeans]], ctx: Context
    ) -> Prototypes:
        """Train the prototypes on all class means, each drawn to its p_c across the margin."""
        clients = kit.client_vectors(ctx, updates, "means", latest=True)
        means, labels, _ = kit.stack_vectors(clients)
        if not len(labels):
            return state
        margin = self._margin(means, labels, ctx.task.num_classes)
        rate = ctx.task.training.lr if self.server_lr is None else self.server_lr
        for number in range(kit.server_steps(ctx, updates, self.server_epochs)):
            for rows, classes, weights in kit.vector_batches(
                clients, self.server_batch, ctx.rng(f"epoch {number}")
            ):
                loss = margin_loss(rows, state.module(), classes, margin)
                kit.sgd_step(state.module, (loss * weights).mean(), rate)
        return Prototypes(state.module, True)

    def predict(self, me: Client, message: GlobalPrototypes | None) -> Predictor:
        """Return the nearest of the prototypes last received, or the head where there are none yet."""
        rows = me.private.get("prototypes") if message is None else message.prototypes
        if rows is None or self.prediction == "head":
            return me.model
        return kit.nearest_prototype(me.model, kit.ClassTable.full(rows))

    def _margin(self, means: Tensor, labels: Tensor, classes: int) -> float:
        if self.margin == "adaptive":
            return min(class_margin(*kit.mean_by_class([(means, labels)], classes)), self.threshold)
        return self.threshold if self.margin == "fixed" else 0.0


def class_margin(means: Tensor, senders: Tensor) -> float:
    """Return δ, the largest distance of a class mean to its nearest neighbour; 0 for a single class."""
    present = means[senders > 0]
    if len(present) < 2:
        return 0.0
    # Exact distances: the faster product form loses a small distance between vectors far from the origin.
    distances = torch.cdist(present, present, compute_mode="donot_use_mm_for_euclid_dist")
    distances.fill_diagonal_(float("inf"))
    return float(distances.amin(dim=1).max())


def margin_loss(means: Tensor, prototypes: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Return the cross-entropy of scores −(‖P − p_c‖₂ + δ·1[c = y]), one number per class mean."""
    squared = (means[:, None] - prototypes[None]).square().sum(dim=2)
    distances = squared.clamp(min=1e-12).sqrt()  # the root has no slope at zero
    # An integer tensor times a float would be in torch's default precision, not in that of the distances.
    correct = one_hot(labels, len(prototypes)).to(distances.dtype)
    return cross_entropy(-(distances + margin * correct), labels, reduction="none")
