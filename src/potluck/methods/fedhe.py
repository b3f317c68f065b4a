"""FedHe (Chan and Ngai, MSN 2021): asynchronous distillation from the class-mean logits of all clients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck.method import (
    Client,
    ClientInfo,
    Context,
    Method,
    PaperAccounting,
    Supports,
    Tensors,
    Training,
    Update,
    kit,
    setting,
)

Distance = Literal["mse", "kl"]


@dataclass
class Store:
    """Server: D_c as a sum and a count, and how many updates came in all; or the latest rows of each client."""

    total: Tensor
    count: Tensor
    events: int
    latest: dict[str, Tensors]


@dataclass
class FedHe(Method[Store, kit.ClassVectors, kit.ClassLogits]):
    """A client trains towards labels and the store's mean logits, and adds its own to the store."""

    name: ClassVar[str] = "fedhe"
    summary: ClassVar[str] = "asynchronous distillation from class-mean logits"
    supports: ClassVar[Supports] = Supports(
        robust="the logits that enter the store: outliers among the clients' latest are left out",
        row_privacy={"collect": "after", "inner_batches": 0},
        schedule="async",
        single_answers="it keeps the latest logits of each client",
    )

    distillation_weight: float = setting(1.0, "weight α of the distance to the store's mean logits", ge=0)
    distance: Distance = setting(
        "mse",
        "distance of logits to the store's mean: squared and averaged over the classes (the released code), or KL of "
        "their softmax",
        later=True,
    )
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
    collapse_every: int = setting(0, "updates after which history becomes one vote; 0: ten per client", ge=0)
    absent: Literal["omit", "zeros"] = setting(
        "omit", "a class that a client did not see: left out, or sent as zeros"
    )
    cold_start_events: int = setting(
        0, "updates before distillation begins; an unknown class never distils", ge=0
    )

    def init_server(self, ctx: Context) -> Store:
        """Start with an empty store."""
        classes, device = ctx.task.num_classes, ctx.task.device
        total = torch.zeros(classes, classes, dtype=ctx.task.dtype, device=device)
        return Store(total, torch.zeros(classes, dtype=ctx.task.dtype, device=device), 0, {})

    def broadcast(self, state: Store, client: ClientInfo, ctx: Context) -> kit.ClassVectors:
        """(p_{s,c}, c) of every class in the store (eq. 10)."""
        has_logits = (state.count > 0) & (state.events >= self.cold_start_events)
        return kit.ClassTable(_mean(state.total, state.count), has_logits).message(ids=True)

    def client(self, me: Client, message: kit.ClassVectors) -> kit.ClassLogits:
        """Train on eq. 13 and share the mean logits of the same passes per class (eq. 8)."""
        received = message.table(me.task.num_classes)

        def loss(x: Tensor, y: Tensor) -> tuple[kit.LossParts, Tensor]:
            return _distilled(me.model, x, y, received, self.distillation_weight, self.distance)

        if self.collect == "training":
            collected = kit.fit_with_class_means(me, loss, batches=self._batches(me))
        else:
            collected = self._fit_then_collect(me, received)
        return self.shared(*collected, me.task.num_classes)

    def shared(self, means: Tensor, labels: Tensor, counts: Tensor, classes: int) -> kit.ClassLogits:
        """Return what is sent of the mean logits of each class (eq. 8)."""
        if self.denominator == "v_plus_1":  # s_c / (V_c + 1)
            seen = counts.to(means.dtype)
            means = means * (seen / (seen + 1))[:, None]
        if self.absent == "zeros":
            means, _ = kit.scatter_by_class(means, labels, classes)
            labels = torch.arange(classes, device=labels.device)
        return kit.ClassLogits(means, labels)

    def server(self, state: Store, updates: Sequence[Update[kit.ClassLogits]], ctx: Context) -> Store:
        """D_c ← D_c ∪ {p_{k,c}} (eq. 9), in the order of client ids."""
        if self.store in ("all", "collapse"):
            result = replace(state, total=state.total.clone(), count=state.count.clone())
            for client in kit.client_vectors(ctx, updates, "rows", stored=True):
                result.total.index_add_(0, client.labels, client.weight * client.vectors)
                result.count[client.labels] += client.weight
                result.events += 1
                self._collapse(result, len(ctx.task.clients))
            return result
        return _with_latest(state, updates, ctx)

    def forget(self, state: Store, me: Client, ctx: Context) -> Store | None:
        """Drop the client's latest rows; with another store its logits cannot be told from those of others."""
        if self.store != "latest_per_client":
            return None
        latest = {name: entry for name, entry in state.latest.items() if name != me.info.name}
        return _mean_of_latest(latest, state.events, ctx)

    def workload(self, samples: int, training: Training) -> int:
        """Count a few batches, not epochs, where a job has few."""
        if not self.inner_batches:
            return super().workload(samples, training)
        return self.inner_batches * min(training.batch_size or samples, samples)

    def paper_accounting(self, down: kit.ClassVectors, up: kit.ClassLogits) -> PaperAccounting:
        """Count one direction of all classes, met in the batches or not, as Tables III and IV."""
        classes = up.rows.shape[1]
        return PaperAccounting(
            classes * (classes + 1), 0, "one direction only, logits of all classes (Tables III and IV)"
        )

    def _batches(self, me: Client) -> Iterator[tuple[Tensor, Tensor]] | None:
        """Return the batches of a job that has a number of them; a small client repeats its data."""
        if not self.inner_batches:
            return None
        return itertools.islice(me.batches(epochs=self.inner_batches), self.inner_batches)

    def _collapse(self, store: Store, clients: int) -> None:
        """Where `store` says so, turn history into one vote at every multiple of `collapse_every` updates."""
        if self.store == "collapse" and store.events % (self.collapse_every or 10 * clients) == 0:
            store.total, store.count = _mean(store.total, store.count), store.count.clamp(max=1)

    def _fit_then_collect(self, me: Client, received: kit.ClassTable) -> tuple[Tensor, Tensor, Tensor]:
        """Train, then average the logits of every sample once."""
        weight, distance = self.distillation_weight, self.distance
        if self.inner_batches:
            me.fit_models(
                {"model": me.model},
                lambda x, y: distilled_loss(me.model, x, y, received, weight, distance),
                batches=self._batches(me),
            )
        else:
            me.fit(distilled_loss, received, weight, distance)
        return me.class_means(me.model)


def distilled_loss(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    received: kit.ClassTable,
    weight: float,
    distance: Distance = "mse",
) -> kit.LossParts:
    """Return CE + α · distance of o to p_{s,y} (eq. 13)."""
    return _distilled(model, x, y, received, weight, distance)[0]


def _distilled(
    model: nn.Module, x: Tensor, y: Tensor, received: kit.ClassTable, weight: float, distance: Distance
) -> tuple[kit.LossParts, Tensor]:
    """Return eq. 13 and the logits it is computed from."""
    logits = model(x)
    if distance == "mse":
        pull = kit.class_mse(logits, y, received.rows, received.known)
    else:  # KL(σ(p_{s,y}) ‖ σ(o)); a class that the server does not know adds nothing
        pull = (kit.softmax_kl(received.rows[y], logits) * received.known[y]).mean()
    label_loss = cross_entropy(logits, y)
    return kit.LossParts(label_loss + weight * pull, label_loss), logits


def _with_latest(state: Store, updates: Sequence[Update[kit.ClassLogits]], ctx: Context) -> Store:
    """Replace a client's older row of a class by its newer one, and average the rows of all clients."""
    latest, classes = dict(state.latest), ctx.task.num_classes
    clients = kit.client_vectors(ctx, updates, "rows", screen=False)  # the mean of all is screened below
    for client in clients:
        rows, present = kit.scatter_by_class(client.vectors, client.labels, classes)
        old = latest.get(client.client.name, {"rows": rows, "held": present})
        overlap = old["held"] & present  # a stale row replaces an earlier one by its weight
        rows = torch.where(overlap[:, None], torch.lerp(old["rows"], rows, client.weight), rows)
        rows = torch.where(present[:, None], rows, old["rows"])
        latest[client.client.name] = {"rows": rows, "held": present | old["held"]}
    return _mean_of_latest(latest, state.events + len(clients), ctx)


def _mean_of_latest(latest: dict[str, Tensors], events: int, ctx: Context) -> Store:
    """Average the rows of all clients that are kept."""
    if not latest:
        total = torch.zeros(
            ctx.task.num_classes, ctx.task.num_classes, dtype=ctx.task.dtype, device=ctx.task.device
        )
        return Store(total, torch.zeros_like(total[0]), events, {})
    sent = [(entry["rows"][entry["held"]], entry["held"].nonzero()[:, 0]) for entry in latest.values()]
    rows, senders = kit.screened_mean_by_class(ctx, sent)
    count = senders.to(rows.dtype)
    return Store(rows * count[:, None], count, events, latest)


def _mean(total: Tensor, count: Tensor) -> Tensor:
    """Divide sums by counts, where there are any."""
    return total / torch.where(count > 0, count, 1)[:, None]
