"""FedTGP (Zhang et al., AAAI 2024): prototypes trained on the server, kept apart by an adaptive margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from potluck.core.classwise import ClassTable, prototype_loss
from potluck.core.client import Client
from potluck.core.composite import Composite
from potluck.core.method import Method, Need, Predictor, Update
from potluck.core.payload import Payload
from potluck.core.schema import Labels, Shape
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import mean_rows, sgd_step


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
    """Local training as in FedProto, towards prototypes that the server trained to be far apart.

    `threshold` caps the margin (τ). `margin`: `adaptive` (the largest nearest-neighbour distance of the
    class means), `fixed` (τ itself) or `none`. `prediction`: the nearest prototype
    of all classes (`proto_all`), or the client's `head`.
    """

    name: ClassVar[str] = "fedtgp"
    summary: ClassVar[str] = "features drawn to prototypes that the server trains apart"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.EQUAL_FEATURES})

    prototype_weight: float = 10.0  # λ
    threshold: float = 100.0
    margin: Literal["adaptive", "fixed", "none"] = "adaptive"
    server_epochs: int = 100
    server_batch: int = 10
    server_lr: float = 0.01
    prediction: Literal["proto_all", "head"] = "proto_all"

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
        """Epochs of gradient steps on all uploaded class means, each drawn to its p_c across the margin."""
        means = torch.cat([update.payload.means for update in updates])
        labels = torch.cat([update.payload.labels for update in updates])
        margin = self._margin(means, labels, ctx.task.num_classes)
        for number in range(self.server_epochs):
            order = torch.randperm(len(labels), generator=ctx.rng(f"epoch {number}"))
            for rows in torch.split(order, self.server_batch):
                loss = margin_loss(means[rows], state.module(), labels[rows], margin)
                sgd_step(state.module, loss, self.server_lr)
        return Prototypes(state.module, True)

    def _margin(self, means: Tensor, labels: Tensor, classes: int) -> float:
        if self.margin == "adaptive":
            return min(class_margin(*mean_rows([(means, labels)], classes)), self.threshold)
        return self.threshold if self.margin == "fixed" else 0.0

    def predict(self, me: Client, message: GlobalPrototypes | None) -> Predictor:
        """The nearest of the prototypes last received, or the head where there are none yet."""
        rows = me.private.get("prototypes") if message is None else message.prototypes
        if rows is None or self.prediction == "head":
            return me.model
        table = _table(rows)
        return Composite("nearest", {"model": me.model}, {"rows": table.rows, "known": table.known})


def class_margin(means: Tensor, senders: Tensor) -> float:
    """The largest distance of a class mean to its nearest neighbour; no margin where only one class came."""
    present = means[senders > 0]
    if len(present) < 2:
        return 0.0
    distances = torch.cdist(present, present)
    distances.fill_diagonal_(float("inf"))
    return float(distances.amin(dim=1).max())


def margin_loss(means: Tensor, prototypes: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Cross-entropy of scores −(‖P − p_c‖₂ + δ·1[c = y])."""
    squared = (means[:, None] - prototypes[None]).square().sum(dim=2)
    distances = squared.clamp(min=1e-12).sqrt()  # the root has no slope at zero
    return cross_entropy(-(distances + margin * one_hot(labels, len(prototypes))), labels)


def _table(rows: Tensor) -> ClassTable:
    return ClassTable(rows, torch.ones(len(rows), dtype=torch.bool, device=rows.device))
