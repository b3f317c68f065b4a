"""FedProto (Tan et al., AAAI 2022): local features are drawn to the mean feature of their class over clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.method import (
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
    SecureSums,
    Shape,
    Supports,
    Update,
    kit,
    setting,
)


@dataclass(frozen=True)
class Prototypes(Payload):
    """Client to server: C_{k,c}, the mean feature of each class it holds; counts only where the mean is weighted."""

    means: Annotated[Tensor, Shape("rows", "features")]
    labels: Annotated[Tensor, Labels()]
    counts: Annotated[Tensor, Shape("rows"), Counts(1)] | None = None


@dataclass
class FedProto(Method[kit.ClassTable, kit.ClassVectors, Prototypes]):
    """Local training on cross-entropy plus the squared distance of features to the prototypes of their class."""

    name: ClassVar[str] = "fedproto"
    summary: ClassVar[str] = "features drawn to the class means of all clients"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.EQUAL_FEATURES})
    supports: ClassVar[Supports] = Supports(
        robust="the class means",
        max_share={"aggregate": ("weighted", "literal")},
        row_privacy={"collect": "after", "aggregate": "mean"},
        sums=SecureSums(when={"aggregate": ("mean", "weighted")}),
    )

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
    keep_old: bool = setting(True, "keep the prototype of a class that no client sent this time")

    def init_server(self, ctx: Context) -> kit.ClassTable:
        """Start without prototypes."""
        return kit.ClassTable.empty(ctx.task, ctx.task.feature_dim or 0)

    def broadcast(self, state: kit.ClassTable, client: ClientInfo, ctx: Context) -> kit.ClassVectors:
        """C̄_c of all known classes."""
        return state.message()

    def client(self, me: Client, message: kit.ClassVectors) -> Prototypes:
        """Train towards labels and prototypes, send the class means of the features."""
        table = message.table(me.task.num_classes)
        if self.prediction != "head":
            me.private["prototypes"] = {"rows": table.rows.clone(), "known": table.known.clone()}
        if self.collect == "after":
            me.fit(kit.prototype_loss, table.rows, table.known, self.prototype_weight)
            means, labels, counts = me.class_means(me.model.features)
        else:
            means, labels, counts = self._fit_and_collect(me, table)
        return Prototypes(means, labels, None if self.aggregate == "mean" else counts)

    def server(
        self, state: kit.ClassTable, updates: Sequence[Update[Prototypes]], ctx: Context
    ) -> kit.ClassTable:
        """C̄_c ← the mean over the senders of class c."""
        old = state if self.keep_old else self.init_server(ctx)
        sent = [(update.payload.means, update.payload.labels) for update in updates]
        if self.aggregate == "literal":
            sent = _divided_by_senders(sent, ctx.task.num_classes)
        counts = [update.payload.counts for update in updates if update.payload.counts is not None]
        weights = None if self.aggregate == "mean" else counts  # Σ n_{k,c}/N_c · C_{k,c}
        return kit.update_class_table(ctx, old, updates, sent, weights)[0]

    def predict(self, me: Client, message: kit.ClassVectors | None) -> Predictor:
        """Return the head, or the nearest prototype of those last received; the head while there are none."""
        if self.prediction == "head":
            return me.model
        table = message.table(me.task.num_classes) if message is not None else None
        if table is None and "prototypes" in me.private:
            table = kit.ClassTable(**me.private["prototypes"])
        if table is not None and self.prediction == "proto_own":
            own = torch.zeros_like(table.known)
            own[me.train.classes().to(own.device)] = True
            table = kit.ClassTable(table.rows, table.known & own)
        if table is None or not bool(table.known.any()):
            return me.model
        return kit.nearest_prototype(me.model, table)

    def check_update(self, payload: Prototypes, client: ClientInfo, ctx: Context) -> None:
        """Require the counts that a weighted mean needs."""
        if self.aggregate != "mean" and payload.counts is None:
            raise PayloadError(f"Prototypes.counts is missing; method.aggregate={self.aggregate!r} needs it.")

    def paper_accounting(self, down: kit.ClassVectors, up: Prototypes) -> PaperAccounting:
        """Count own classes only, both ways, without ids (FedGH's Table 3)."""
        count = up.means.numel()
        return PaperAccounting(count, count, "own classes both ways, no class ids (FedGH, Table 3)")

    def _fit_and_collect(self, me: Client, table: kit.ClassTable) -> tuple[Tensor, Tensor, Tensor]:
        """Average the features that pass in training per class, over all epochs or over the last."""
        means = kit.ClassMean(me.task.num_classes)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for _ in range(me.training.epochs):
                if self.collect == "last_epoch":
                    means.clear()
                yield from me.batches(1)

        def loss(x: Tensor, y: Tensor) -> tuple[kit.LossParts, Tensor]:
            features = me.model.features(x)
            pull = kit.class_mse(features, y, table.rows, table.known)
            label_loss = cross_entropy(me.model.head(features), y)
            return kit.LossParts(label_loss + self.prototype_weight * pull, label_loss), features

        rows, labels, _ = kit.fit_with_class_means(me, loss, batches=batches(), means=means)
        # |D_{k,c}|: a sample counts once, in however many epochs its features passed.
        counts = torch.bincount(me.train.labels, minlength=me.task.num_classes).to(labels.device)
        return rows, labels, counts[labels]


def _divided_by_senders(sent: list[tuple[Tensor, Tensor]], classes: int) -> list[tuple[Tensor, Tensor]]:
    """Divide by |N_c| once more, as the equation is printed."""
    senders = torch.bincount(torch.cat([labels for _, labels in sent]), minlength=classes)
    return [(means / senders[labels][:, None].to(means.dtype), labels) for means, labels in sent]
