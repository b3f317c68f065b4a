"""FedHe (Chan and Ngai, MSN 2021): asynchronous distillation from the class-mean logits of all clients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.core.classwise import ClassRows, ClassTable, fit_collecting, row_loss
from potluck.core.client import Client
from potluck.core.method import Method, PaperAccounting, Update
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Labels, Shape
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import ClassMean, mean_rows, scatter_rows
from potluck.core.training import Training


@dataclass(frozen=True)
class MeanLogits(Payload):
    """Client to server: (p_{k,c}, c), the averaged logits of each class in its batches (eq. 8)."""

    rows: Annotated[Tensor, Shape("rows", "classes")]
    labels: Annotated[Tensor, Labels()]


@dataclass
class Store:
    """Server: what was received per class, as a sum and a count, and how many answers came in all."""

    total: Tensor
    count: Tensor
    events: int
    latest: dict[str, Tensors]


@dataclass
class FedHe(Method[Store, ClassRows, MeanLogits]):
    """A client takes a few batches towards labels and the store's mean logits, and adds its own to the store.

    `distillation_weight` is the paper's α. `inner_batches` is how many batches make a job (0: the experiment's local
    epochs). `denominator`: V+1 (eq. 8) or `v`, the plain mean. `store`: `all` ever received (eq. 9);
    `collapse`, history becomes one vote every `collapse_every` answers (0: ten per client); or the
    `latest_per_client`. `absent`: a class not seen is left out (`omit`) or sent as `zeros`.
    `cold_start_events` holds distillation back until so many answers came; a class never received always is.
    """

    name: ClassVar[str] = "fedhe"
    summary: ClassVar[str] = "asynchronous distillation from class-mean logits"
    asynchronous: ClassVar[bool] = True
    own_steps: ClassVar[bool] = True

    distillation_weight: float = 1.0
    inner_batches: int = 3
    denominator: Literal["v_plus_1", "v"] = "v_plus_1"
    store: Literal["all", "collapse", "latest_per_client"] = "all"
    collapse_every: int = 0
    absent: Literal["omit", "zeros"] = "omit"
    cold_start_events: int = 0

    def workload(self, samples: int, training: Training) -> int:
        """A few batches, not epochs."""
        if not self.inner_batches:
            return super().workload(samples, training)
        return self.inner_batches * min(training.batch_size or samples, samples)

    def init_server(self, ctx: Context) -> Store:
        """An empty store."""
        classes, device = ctx.task.num_classes, ctx.task.device
        total = torch.zeros(classes, classes, dtype=ctx.task.dtype, device=device)
        return Store(total, torch.zeros(classes, dtype=torch.int64, device=device), 0, {})

    def broadcast(self, state: Store, client: ClientInfo, ctx: Context) -> ClassRows:
        """(p_{s,c}, c) of every class in the store (eq. 10)."""
        known = (state.count > 0) & (state.events >= self.cold_start_events)
        return ClassTable(state.total / state.count.clamp(min=1)[:, None], known).message(ids=True)

    def client(self, me: Client, message: ClassRows) -> MeanLogits:
        """A few random batches on eq. 13; the logits of the same passes, added up, are what it shares."""
        received, means = message.table(me.task.num_classes), ClassMean(me.task.num_classes)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            logits = me.model(x)
            pull = row_loss(logits, y, received.rows, received.known)
            return cross_entropy(logits, y) + self.distillation_weight * pull, logits

        batches = me.batches()
        if self.inner_batches:  # a small client goes through its data again
            batches = itertools.islice(me.batches(epochs=self.inner_batches), self.inner_batches)
        fit_collecting(me, loss, batches, means)
        return self._share(*means.result(), classes=me.task.num_classes)

    def _share(self, means: Tensor, labels: Tensor, counts: Tensor, *, classes: int) -> MeanLogits:
        if self.denominator == "v_plus_1":  # eq. 8: s_c / (V_c + 1)
            means = means * (counts / (counts + 1)).to(means.dtype)[:, None]
        if self.absent == "zeros":
            means, _ = scatter_rows(means, labels, classes)
            labels = torch.arange(classes, device=labels.device)
        return MeanLogits(means, labels)

    def server(self, state: Store, updates: Sequence[Update[MeanLogits]], ctx: Context) -> Store:
        """D_c ← D_c ∪ {p_{k,c}} (eq. 9), in the order of client ids where several came at once."""
        events = state.events
        if self.store == "latest_per_client":
            return self._replace(state, updates, ctx.task.num_classes)
        total, count = state.total.clone(), state.count.clone()
        for payload in (update.payload for update in updates):
            total.index_add_(0, payload.labels, payload.rows)
            count[payload.labels] += 1
            events += 1
            if self.store == "collapse" and events % (self.collapse_every or 10 * len(ctx.task.clients)) == 0:
                total, count = total / count.clamp(min=1)[:, None], count.clamp(max=1)
        return Store(total, count, events, {})

    def _replace(self, state: Store, updates: Sequence[Update[MeanLogits]], classes: int) -> Store:
        """A client's newer row of a class takes the place of its older one."""
        latest = dict(state.latest)
        for client, payload in ((update.client, update.payload) for update in updates):
            rows, present = scatter_rows(payload.rows, payload.labels, classes)
            old = latest.get(client.name, {"rows": rows, "held": present})
            rows = torch.where(present[:, None], rows, old["rows"])
            latest[client.name] = {"rows": rows, "held": present | old["held"]}
        entries = [(entry["rows"][entry["held"]], entry["held"].nonzero()[:, 0]) for entry in latest.values()]
        rows, count = mean_rows(entries, classes)
        return Store(rows * count[:, None], count, state.events + len(updates), latest)

    def paper_accounting(self, down: ClassRows, up: MeanLogits) -> PaperAccounting:
        """Tables III and IV count one direction."""
        return PaperAccounting(up.numbers(), 0, "one direction only (Tables III and IV)")
