"""FedProto (Tan et al., AAAI 2022): local features are drawn to the mean feature of their class over clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.core.classwise import (
    ClassRows,
    ClassTable,
    fit_collecting,
    prototype_loss,
    row_loss,
)
from potluck.core.client import Client
from potluck.core.composite import Composite
from potluck.core.method import Method, Need, PaperAccounting, Predictor, Update
from potluck.core.payload import Payload, PayloadError
from potluck.core.schema import Counts, Labels, Shape
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import ClassMean, mean_rows


@dataclass(frozen=True)
class Prototypes(Payload):
    """Client to server: the mean feature of each class it holds; counts only where the mean is weighted."""

    means: Annotated[Tensor, Shape("rows", "features")]
    labels: Annotated[Tensor, Labels()]
    counts: Annotated[Tensor, Shape("rows"), Counts(1)] | None = None


@dataclass
class FedProto(Method[ClassTable, ClassRows, Prototypes]):
    """Local training on cross-entropy plus `prototype_weight` times the squared distance of features to prototypes.

    `prediction`: `head`, or the nearest prototype among all classes (`proto_all`) or the client's own
    (`proto_own`). `aggregate`: `mean` over senders, `weighted` by sample counts, or the published equation
    taken literally (`literal`, normalised twice). `collect`: class means `after` training, or of the passes
    of all epochs (`training`) or of the `last_epoch`. `keep_old` keeps the prototype of a class nobody sent.
    """

    name: ClassVar[str] = "fedproto"
    summary: ClassVar[str] = "features drawn to the class means of all clients"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.EQUAL_FEATURES})

    prototype_weight: float = 1.0  # λ
    prediction: Literal["head", "proto_all", "proto_own"] = "head"
    aggregate: Literal["mean", "weighted", "literal"] = "mean"
    collect: Literal["after", "training", "last_epoch"] = "after"
    keep_old: bool = True

    def init_server(self, ctx: Context) -> ClassTable:
        """No class has a prototype yet."""
        return ClassTable.empty(ctx.task, ctx.task.feature_dim or 0)

    def broadcast(self, state: ClassTable, client: ClientInfo, ctx: Context) -> ClassRows:
        """p."""
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
            means, labels, counts = self._fit_collecting(me, table).result()
        return Prototypes(means, labels, None if self.aggregate == "mean" else counts)

    def _fit_collecting(self, me: Client, table: ClassTable) -> ClassMean:
        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            features = me.model.features(x)
            pull = row_loss(features, y, table.rows, table.known)
            return cross_entropy(me.model.head(features), y) + self.prototype_weight * pull, features

        optimizer, means = me.optimizer(me.model), ClassMean(me.task.num_classes)
        for _ in range(me.training.epochs):
            if self.collect == "last_epoch":
                means = ClassMean(me.task.num_classes)
            fit_collecting(me, loss, me.batches(1), means, optimizer)
        return means

    def check_answer(self, payload: Prototypes, client: ClientInfo, ctx: Context) -> None:
        """A weighted mean needs the counts."""
        if self.aggregate != "mean" and payload.counts is None:
            raise PayloadError(f"Prototypes.counts is missing; method.aggregate={self.aggregate!r} needs it.")

    def server(self, state: ClassTable, updates: Sequence[Update[Prototypes]], ctx: Context) -> ClassTable:
        """p_c ← the mean over the senders of class c."""
        old = state if self.keep_old else self.init_server(ctx)
        classes = ctx.task.num_classes
        rows, senders = mean_rows([(u.payload.means, u.payload.labels) for u in updates], classes)
        if self.aggregate != "mean":
            rows, total = torch.zeros_like(rows), rows.new_zeros(classes)
            for payload in (update.payload for update in updates):
                assert payload.counts is not None  # refused by check_answer
                counts = payload.counts.to(rows.dtype)
                rows.index_add_(0, payload.labels, payload.means * counts[:, None])
                total.index_add_(0, payload.labels, counts)
            rows = rows / total.clamp(min=1)[:, None]  # Σ n_{k,c}/N_c · C_{k,c}
            if self.aggregate == "literal":
                rows = rows / senders.clamp(min=1)[:, None]  # and once more 1/|N_c|
        return old.replaced(rows, senders > 0)

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
        return Composite("nearest", {"model": me.model}, {"rows": table.rows, "known": table.known})

    def paper_accounting(self, down: ClassRows, up: Prototypes) -> PaperAccounting:
        """The count of FedGH's Table 3: own classes only, both ways, without ids."""
        count = up.means.numel()
        return PaperAccounting(count, count, "own classes both ways, no class ids (FedGH, Table 3)")
