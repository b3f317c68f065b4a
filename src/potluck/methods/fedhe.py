"""FedHe (Chan and Ngai, MSN 2021): asynchronous distillation from the class-mean logits of all clients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck.core import (
    ClassMean,
    Client,
    ClientInfo,
    Context,
    Labels,
    Method,
    PaperAccounting,
    Payload,
    Shape,
    Tensors,
    Training,
    Update,
    setting,
)
from potluck.kit import ClassRows, ClassTable, collecting, mean_rows, row_loss, scatter_rows, screened


@dataclass(frozen=True)
class MeanLogits(Payload):
    """Client to server: (p_{k,c}, c), the averaged logits of each class in its batches (eq. 8)."""

    rows: Annotated[Tensor, Shape("rows", "classes")]
    labels: Annotated[Tensor, Labels()]


@dataclass
class Averages:
    """Server: what was received per class, as a sum and a count, and how many answers came in all."""

    total: Tensor
    count: Tensor
    events: int
    latest: dict[str, Tensors]


@dataclass
class FedHe(Method[Averages, ClassRows, MeanLogits]):
    """A client trains towards labels and the store's mean logits, and adds its own to the store."""

    name: ClassVar[str] = "fedhe"
    summary: ClassVar[str] = "asynchronous distillation from class-mean logits"
    averages: ClassVar[str] = (
        "the logits that enter the store: who lies far off the others' latest is left out"
    )
    guards_rows: ClassVar[bool] = True
    guarded_with: ClassVar[str] = "method.collect = 'after' and leave method.inner_batches out"
    asynchronous: ClassVar[bool] = True
    sees_latest: ClassVar[bool] = True

    distillation_weight: float = setting(1.0, "weight α of the distance to the store's mean logits", ge=0)
    inner_batches: int = setting(
        0, "batches that make a job (the paper: 3); 0: the experiment's local epochs", ge=0
    )
    collect: Literal["training", "after"] = setting(
        "training",
        "logits of the class means: as they passed in training (the paper), or of every sample once, after it",
        later=True,
    )
    denominator: Literal["v_plus_1", "v"] = setting(
        "v_plus_1", "what a sum of V logits is divided by: V+1 (eq. 8), or V, the plain mean"
    )
    store: Literal["all", "collapse", "latest_per_client"] = setting(
        "all",
        "what the mean is over: all ever received (eq. 9), history as one vote, or each client's latest",
    )
    collapse_every: int = setting(0, "answers after which history becomes one vote; 0: ten per client", ge=0)
    absent: Literal["omit", "zeros"] = setting(
        "omit", "a class that a client did not see: left out, or sent as zeros"
    )
    cold_start_events: int = setting(
        0, "answers before distillation begins; an unknown class never distils", ge=0
    )

    def workload(self, samples: int, training: Training) -> int:
        """A few batches, not epochs."""
        if not self.inner_batches:
            return super().workload(samples, training)
        return self.inner_batches * min(training.batch_size or samples, samples)

    def guarded(self) -> bool:
        """Logits that are collected in passing have no noise, and single batches no place in the accounts."""
        return self.collect == "after" and not self.inner_batches

    def init_server(self, ctx: Context) -> Averages:
        """An empty store."""
        classes, device = ctx.task.num_classes, ctx.task.device
        total = torch.zeros(classes, classes, dtype=ctx.task.dtype, device=device)
        return Averages(total, torch.zeros(classes, dtype=ctx.task.dtype, device=device), 0, {})

    def broadcast(self, state: Averages, client: ClientInfo, ctx: Context) -> ClassRows:
        """(p_{s,c}, c) of every class in the store (eq. 10)."""
        known = (state.count > 0) & (state.events >= self.cold_start_events)
        return ClassTable(_mean(state.total, state.count), known).message(ids=True)

    def client(self, me: Client, message: ClassRows) -> MeanLogits:
        """Train on eq. 13; the logits of the same passes, added up, are what it shares."""
        received, classes = message.table(me.task.num_classes), me.task.num_classes
        if self.collect == "after" and not self.inner_batches:
            me.fit(_after_loss, received, self.distillation_weight)
            return self._share(*me.class_means(me.model), classes=classes)
        means = ClassMean(classes)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return _loss(me.model, x, y, received, self.distillation_weight)

        batches = None
        if self.inner_batches:  # a small client goes through its data again
            batches = itertools.islice(me.batches(epochs=self.inner_batches), self.inner_batches)
        me.fit_models({"model": me.model}, collecting(loss, means), batches=batches)
        found = means.result() if self.collect == "training" else me.class_means(me.model)
        return self._share(*found, classes=classes)

    def _share(self, means: Tensor, labels: Tensor, counts: Tensor, *, classes: int) -> MeanLogits:
        if self.denominator == "v_plus_1":  # eq. 8: s_c / (V_c + 1)
            seen = counts.to(means.dtype)
            means = means * (seen / (seen + 1))[:, None]
        if self.absent == "zeros":
            means, _ = scatter_rows(means, labels, classes)
            labels = torch.arange(classes, device=labels.device)
        return MeanLogits(means, labels)

    def server(self, state: Averages, updates: Sequence[Update[MeanLogits]], ctx: Context) -> Averages:
        """D_c ← D_c ∪ {p_{k,c}} (eq. 9), in the order of client ids where several came; a stale one counts less."""
        events, fresh = state.events, [update for update in updates if update.fresh]
        if self.store == "latest_per_client":
            return self._replace(state, fresh, ctx)
        total, count = state.total.clone(), state.count.clone()
        for update, (rows, labels) in zip(updates, self._believed(updates, ctx), strict=True):
            if not update.fresh:
                continue
            total.index_add_(0, labels, update.weight * rows)
            count[labels] += update.weight
            events += 1
            if self.store == "collapse" and events % (self.collapse_every or 10 * len(ctx.task.clients)) == 0:
                total, count = _mean(total, count), count.clamp(max=1)
        return Averages(total, count, events, {})

    def _believed(self, updates: Sequence[Update[MeanLogits]], ctx: Context) -> list[tuple[Tensor, Tensor]]:
        """Rows and labels; a robust rule compares them with the others' latest, and believes nobody before a third."""
        sent = [(update.payload.rows, update.payload.labels) for update in updates]
        if ctx.averaging.rule != "mean" and len(sent) < min(3, len(ctx.task.clients)):
            return [(rows[:0], labels[:0]) for rows, labels in sent]
        return screened(ctx.averaging, sent, ctx.task.num_classes)[0]

    def _replace(self, state: Averages, updates: Sequence[Update[MeanLogits]], ctx: Context) -> Averages:
        """A client's newer row of a class takes the place of its older one."""
        latest, classes = dict(state.latest), ctx.task.num_classes
        for update in updates:
            rows, present = scatter_rows(update.payload.rows, update.payload.labels, classes)
            old = latest.get(update.client.name, {"rows": rows, "held": present})
            known = old["held"] & present  # a stale row takes the place of an earlier one by its weight
            rows = torch.where(known[:, None], torch.lerp(old["rows"], rows, update.weight), rows)
            rows = torch.where(present[:, None], rows, old["rows"])
            latest[update.client.name] = {"rows": rows, "held": present | old["held"]}
        entries = [(entry["rows"][entry["held"]], entry["held"].nonzero()[:, 0]) for entry in latest.values()]
        entries, _ = screened(ctx.averaging, entries, classes)
        rows, senders = mean_rows(ctx.averaging, entries, classes)
        count = senders.to(rows.dtype)
        return Averages(rows * count[:, None], count, state.events + len(updates), latest)

    def paper_accounting(self, down: ClassRows, up: MeanLogits) -> PaperAccounting:
        """Tables III and IV count one direction."""
        return PaperAccounting(up.numbers(), 0, "one direction only (Tables III and IV)")


def _loss(
    model: nn.Module, x: Tensor, y: Tensor, received: ClassTable, weight: float
) -> tuple[Tensor, Tensor]:
    """Eq. 13, and the logits that it saw."""
    logits = model(x)
    pull = row_loss(logits, y, received.rows, received.known)
    return cross_entropy(logits, y) + weight * pull, logits


def _after_loss(model: nn.Module, x: Tensor, y: Tensor, received: ClassTable, weight: float) -> Tensor:
    return _loss(model, x, y, received, weight)[0]


def _mean(total: Tensor, count: Tensor) -> Tensor:
    """Sum over count, where there is any."""
    return total / torch.where(count > 0, count, 1)[:, None]
