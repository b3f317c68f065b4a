"""FedProto (Tan et al., AAAI 2022): local features are drawn to the mean feature of their class over clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.core import (
    ClassMean,
    Client,
    ClientInfo,
    Context,
    Counts,
    Labels,
    Method,
    Need,
    PaperAccounting,
    Payload,
    PayloadError,
    Predictor,
    Shape,
    Update,
    setting,
)
from potluck.kit import ClassRows, ClassTable, collecting, fold_rows, nearest, prototype_loss, row_loss


@dataclass(frozen=True)
class Prototypes(Payload):
    """Client to server: the mean feature of each class it holds; counts only where the mean is weighted."""

    means: Annotated[Tensor, Shape("rows", "features")]
    labels: Annotated[Tensor, Labels()]
    counts: Annotated[Tensor, Shape("rows"), Counts(1)] | None = None


@dataclass
class FedProto(Method[ClassTable, ClassRows, Prototypes]):
    """Local training on cross-entropy plus the squared distance of features to the prototypes of their class."""

    name: ClassVar[str] = "fedproto"
    summary: ClassVar[str] = "features drawn to the class means of all clients"
    guards_rows: ClassVar[bool] = True
    averages: ClassVar[str] = "the class means"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.EQUAL_FEATURES})

    sees_latest: ClassVar[bool] = True

    prototype_weight: float = setting(
        1.0, "weight λ of the distance, which is a mean over the features", ge=0
    )
    prediction: Literal["head", "proto_all", "proto_own"] = setting(
        "head", "what is tested: the head, or the nearest prototype of all classes or of the client's own"
    )
    aggregate: Literal["mean", "weighted", "literal"] = setting(
        "mean",
        "a prototype over its senders: the mean, by sample counts, or the equation as printed (divided twice)",
    )
    collect: Literal["after", "training", "last_epoch"] = setting(
        "after", "features of the class means: after training, or as they passed in all epochs or in the last"
    )
    keep_old: bool = setting(True, "keep the prototype of a class that nobody sent this time")

    def guarded(self) -> bool:
        """Features that are collected in passing, and counts, have no noise."""
        return self.collect == "after" and self.aggregate == "mean"

    def init_server(self, ctx: Context) -> ClassTable:
        """No class has a prototype yet."""
        return ClassTable.empty(ctx.task, ctx.task.feature_dim or 0)

    def broadcast(self, state: ClassTable, client: ClientInfo, ctx: Context) -> ClassRows:
        """The prototypes of all known classes."""
        return state.message()

    def client(self, me: Client, message: ClassRows) -> Prototypes:
        """Train towards labels and prototypes, send the class means of the features."""
        table = message.table(me.task.num_classes)
        if self.prediction != "head":
            me.private["prototypes"] = {"rows": table.rows.clone(), "known": table.known.clone()}
        if self.collect == "after":
            me.fit(prototype_loss, table.rows, table.known, self.prototype_weight)
            means, labels, counts = me.class_means(me.model.features)
        else:
            means, labels, counts = self._collecting(me, table).result()
        return Prototypes(means, labels, None if self.aggregate == "mean" else counts)

    def _collecting(self, me: Client, table: ClassTable) -> ClassMean:
        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            features = me.model.features(x)
            pull = row_loss(features, y, table.rows, table.known)
            return cross_entropy(me.model.head(features), y) + self.prototype_weight * pull, features

        means = ClassMean(me.task.num_classes)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for _ in range(me.training.epochs):
                if self.collect == "last_epoch":
                    means.clear()
                yield from me.batches(1)

        me.fit_models({"model": me.model}, collecting(loss, means), batches=batches())
        return means

    def weighted(self) -> bool:
        """By the counts of each class."""
        return self.aggregate != "mean"

    def check_answer(self, payload: Prototypes, client: ClientInfo, ctx: Context) -> None:
        """A weighted mean needs the counts."""
        if self.aggregate != "mean" and payload.counts is None:
            raise PayloadError(f"Prototypes.counts is missing; method.aggregate={self.aggregate!r} needs it.")

    def server(self, state: ClassTable, updates: Sequence[Update[Prototypes]], ctx: Context) -> ClassTable:
        """p_c ← the mean over the senders of class c."""
        old = state if self.keep_old else self.init_server(ctx)
        sent = [(update.payload.means, update.payload.labels) for update in updates]
        if self.aggregate == "literal":  # once more 1/|N_c|
            senders = torch.bincount(
                torch.cat([labels for _, labels in sent]), minlength=ctx.task.num_classes
            )
            sent = [(means / senders[labels][:, None].to(means.dtype), labels) for means, labels in sent]
        sizes = [update.payload.counts for update in updates if update.payload.counts is not None]
        counts = None if self.aggregate == "mean" else sizes
        return fold_rows(ctx, old, updates, sent, counts)[0]  # Σ n_{k,c}/N_c · C_{k,c}

    def predict(self, me: Client, message: ClassRows | None) -> Predictor:
        """The head, or the nearest prototype of those last received; the head while there are none."""
        if self.prediction == "head":
            return me.model
        table = message.table(me.task.num_classes) if message is not None else None
        if table is None and "prototypes" in me.private:
            table = ClassTable(**me.private["prototypes"])
        if table is not None and self.prediction == "proto_own":
            own = torch.zeros_like(table.known)
            own[me.train.classes().to(own.device)] = True
            table = ClassTable(table.rows, table.known & own)
        if table is None or not bool(table.known.any()):
            return me.model
        return nearest(me.model, table)

    def paper_accounting(self, down: ClassRows, up: Prototypes) -> PaperAccounting:
        """The count of FedGH's Table 3: own classes only, both ways, without ids."""
        count = up.means.numel()
        return PaperAccounting(count, count, "own classes both ways, no class ids (FedGH, Table 3)")
