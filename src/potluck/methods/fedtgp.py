"""FedTGP (Zhang et al., AAAI 2024): prototypes trained on the server, kept apart by an adaptive margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from potluck.core import (
    Averaging,
    Client,
    ClientInfo,
    Context,
    Labels,
    Method,
    Need,
    Payload,
    Predictor,
    Shape,
    Update,
    setting,
)
from potluck.kit import ClassTable, mean_rows, nearest, portion, prototype_loss, screened, sgd_step


@dataclass(frozen=True)
class GlobalPrototypes(Payload):
    """Server to client: p_c of all classes, or nothing before the first server step."""

    prototypes: Annotated[Tensor, Shape("classes", "features")] | None


@dataclass(frozen=True)
class ClassMeans(Payload):
    """Client to server: the mean feature of each class it holds."""

    means: Annotated[Tensor, Shape("rows", "features")]
    labels: Annotated[Tensor, Labels()]


class TrainablePrototypes(nn.Module):
    """One embedding per class, and a small network that turns it into the prototype p_c."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
        """All prototypes, `[C, K]`."""
        prototypes: Tensor = self.transform(self.embedding.weight)
        return prototypes


@dataclass
class Prototypes:
    """Server: the trainable prototypes, and whether they ever learned."""

    module: TrainablePrototypes
    trained: bool


@dataclass
class FedTGP(Method[Prototypes, GlobalPrototypes, ClassMeans]):
    """Local training as in FedProto, towards prototypes that the server trained to be far apart."""

    name: ClassVar[str] = "fedtgp"
    summary: ClassVar[str] = "features drawn to prototypes that the server trains apart"
    guards_rows: ClassVar[bool] = True
    averages: ClassVar[str] = "the class means that prototypes are trained on: who lies far off is left out"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.EQUAL_FEATURES})

    sees_latest: ClassVar[bool] = True

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
        """Random prototypes, not sent before they have learned."""
        classes, width = ctx.task.num_classes, ctx.task.feature_dim or 0
        return Prototypes(ctx.module("prototypes", lambda: TrainablePrototypes(classes, width)), False)

    def broadcast(self, state: Prototypes, client: ClientInfo, ctx: Context) -> GlobalPrototypes:
        """p for all classes, also those that nobody has sent."""
        return GlobalPrototypes(state.module().detach() if state.trained else None)

    def client(self, me: Client, message: GlobalPrototypes) -> ClassMeans:
        """Train towards labels and prototypes; the class means are those of the trained model."""
        if message.prototypes is None:
            me.fit()
        else:
            table = _table(message.prototypes)
            if self.prediction == "proto_all":
                me.private["prototypes"] = table.rows.clone()
            me.fit(prototype_loss, table.rows, table.known, self.prototype_weight)
        means, labels, _ = me.class_means(me.model.features)
        return ClassMeans(means, labels)

    def server(self, state: Prototypes, updates: Sequence[Update[ClassMeans]], ctx: Context) -> Prototypes:
        """Epochs of gradient steps on all class means, each drawn to its p_c across the margin; less if stale.

        Where the answers are a part of a round, so are the epochs.
        """
        found = [(update.payload.means, update.payload.labels) for update in updates]
        sent, _ = screened(ctx.averaging, found, ctx.task.num_classes)
        means, labels = (torch.cat(column) for column in zip(*sent, strict=True))
        if not len(labels):
            return state
        weights = torch.cat(
            [rows.new_full((len(rows),), one.weight) for one, (rows, _) in zip(updates, sent, strict=True)]
        )
        margin = self._margin(means, labels, ctx)
        rate = ctx.task.training.lr if self.server_lr is None else self.server_lr
        for number in range(math.ceil(self.server_epochs * portion(ctx, updates).share)):
            order = torch.randperm(len(labels), generator=ctx.rng(f"epoch {number}"))
            for rows in torch.split(order, self.server_batch):
                loss = margin_loss(means[rows], state.module(), labels[rows], margin)
                sgd_step(state.module, (loss * weights[rows]).mean(), rate)
        return Prototypes(state.module, True)

    def _margin(self, means: Tensor, labels: Tensor, ctx: Context) -> float:
        if self.margin == "adaptive":
            centres = mean_rows(Averaging(), [(means, labels)], ctx.task.num_classes)
            return min(class_margin(*centres), self.threshold)
        return self.threshold if self.margin == "fixed" else 0.0

    def predict(self, me: Client, message: GlobalPrototypes | None) -> Predictor:
        """The nearest of the prototypes last received, or the head where there are none yet."""
        rows = me.private.get("prototypes") if message is None else message.prototypes
        if rows is None or self.prediction == "head":
            return me.model
        return nearest(me.model, _table(rows))


def class_margin(means: Tensor, senders: Tensor) -> float:
    """The largest distance of a class mean to its nearest neighbour; no margin where only one class came."""
    present = means[senders > 0]
    if len(present) < 2:
        return 0.0
    distances = torch.cdist(present, present)
    distances.fill_diagonal_(float("inf"))
    return float(distances.amin(dim=1).max())


def margin_loss(means: Tensor, prototypes: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Cross-entropy of scores −(‖P − p_c‖₂ + δ·1[c = y]), one number per class mean."""
    squared = (means[:, None] - prototypes[None]).square().sum(dim=2)
    distances = squared.clamp(min=1e-12).sqrt()  # the root has no slope at zero
    return cross_entropy(-(distances + margin * one_hot(labels, len(prototypes))), labels, reduction="none")


def _table(rows: Tensor) -> ClassTable:
    return ClassTable(rows, torch.ones(len(rows), dtype=torch.bool, device=rows.device))
