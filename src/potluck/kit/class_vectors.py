"""One vector per class: its payloads, the server's table, losses and means over clients.

Prototypes (class means of features), class-mean logits and gradients per class are all class vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.core.client import Client
from potluck.core.method import Update
from potluck.core.model import ClientModel
from potluck.core.payload import Payload
from potluck.core.random import add_up
from potluck.core.samples import ClassMean
from potluck.core.schema import Labels, Shape
from potluck.core.task import Averaging, ClientInfo, Context, Task
from potluck.core.training import LossParts
from potluck.kit.averages import cap_counts, round_share
from potluck.kit.robust import robust_class_means, screen_rows

Rows = tuple[Tensor, Tensor]
"""Vectors `[n, d]` and their class ids `[n]`."""

ServerStep = Literal["per_mean", "per_client", "pooled", "averaged"]
"""What makes a step on the server: one vector, all of a client's, a minibatch of all, or one class's mean."""

PLAIN = Averaging()

# -- payloads and the server's table ------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassMeans(Payload):
    """Client to server: the mean feature of each class that it holds. No counts."""

    means: Annotated[Tensor, Shape("rows", "features")]
    labels: Annotated[Tensor, Labels()]


@dataclass(frozen=True)
class ClassLogits(Payload):
    """Client to server: the mean logits of each class that it holds. No counts."""

    rows: Annotated[Tensor, Shape("rows", "classes")]
    labels: Annotated[Tensor, Labels()]


@dataclass(frozen=True)
class ClassVectors(Payload):
    """Server to client: one vector per known class. Without `labels` all classes are there, in order."""

    rows: Annotated[Tensor, Shape("rows", "width")]
    labels: Annotated[Tensor, Labels()] | None = None

    def table(self, num_classes: int) -> ClassTable:
        """Lay the vectors out by class id."""
        labels = torch.arange(num_classes, device=self.rows.device) if self.labels is None else self.labels
        return ClassTable(*scatter_by_class(self.rows, labels, num_classes))


@dataclass
class ClassTable:
    """A vector per class `[C, d]` and a mask of the classes that have one; the rows of the others mean nothing."""

    rows: Tensor
    known: Tensor

    @classmethod
    def empty(cls, task: Task, width: int) -> ClassTable:
        """Return a table in which no class has a vector."""
        rows = torch.zeros(task.num_classes, width, dtype=task.dtype, device=task.device)
        return cls(rows, torch.zeros(task.num_classes, dtype=torch.bool, device=task.device))

    @classmethod
    def full(cls, rows: Tensor) -> ClassTable:
        """Return a table in which every class has its row."""
        return cls(rows, torch.ones(len(rows), dtype=torch.bool, device=rows.device))

    def replaced(self, rows: Tensor, classes: Tensor) -> ClassTable:
        """Return the table with the rows of the masked classes replaced; the others keep theirs."""
        return ClassTable(torch.where(classes[:, None], rows, self.rows), self.known | classes)

    def message(self, *, ids: bool = False) -> ClassVectors:
        """Return the known rows as a payload; class ids travel only where rows are missing, or with `ids` always."""
        labels = torch.nonzero(self.known).flatten()
        complete = len(labels) == len(self.known)
        return ClassVectors(self.rows[labels], None if complete and not ids else labels)


def scatter_by_class(rows: Tensor, labels: Tensor, num_classes: int) -> Rows:
    """Lay rows out by class id: a full table [C, d] (zeros where absent) and a mask of present classes."""
    table = rows.new_zeros(num_classes, rows.shape[1])
    table[labels] = rows
    present = torch.zeros(num_classes, dtype=torch.bool, device=rows.device)
    present[labels] = True
    return table, present


# -- on the client ------------------------------------------------------------------------------------------


def class_mse(vectors: Tensor, y: Tensor, rows: Tensor, has_vector: Tensor) -> Tensor:
    """Return the squared distance to the class's row, mean over entries and batch; unknown classes contribute zero."""
    squared = (vectors - rows[y]).square().mean(dim=1)
    return (squared * has_vector[y]).mean()


def prototype_loss(
    model: ClientModel, x: Tensor, y: Tensor, rows: Tensor, has_vector: Tensor, weight: float
) -> LossParts:
    """Return CE + λ·MSE(z, p_y), over the classes that have a prototype."""
    features = model.features(x)
    label_loss = cross_entropy(model.head(features), y)
    return LossParts(label_loss + weight * class_mse(features, y, rows, has_vector), label_loss)


def prototype_scores(vectors: Tensor, table: ClassTable) -> Tensor:
    """Return minus the distance to each class's row; classes without a row come last, with a finite score."""
    # Exact distances: the faster product form makes a score depend on the size of its batch.
    scores = -torch.cdist(vectors, table.rows, compute_mode="donot_use_mm_for_euclid_dist")
    worst = scores[:, table.known].amin(dim=1, keepdim=True) - 1
    return torch.where(table.known, scores, worst)


def fit_with_class_means(
    me: Client,
    loss: Callable[[Tensor, Tensor], tuple[Tensor | LossParts, Tensor]],
    *,
    batches: Iterable[tuple[Tensor, Tensor]] | None = None,
    means: ClassMean | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Train the client's model and average vectors of the same passes per class: (means, labels, counts).

    `loss(x, y)` returns the loss and the vectors of a batch, which are taken from before each step. `batches` replace
    the configured epochs; a caller that passes `means` may clear it between them.
    """
    collected = ClassMean(me.task.num_classes) if means is None else means

    def collect(x: Tensor, y: Tensor) -> Tensor | LossParts:
        value, vectors = loss(x, y)
        collected.add(vectors, y)
        return value

    me.fit_models({"model": me.model}, collect, batches=batches)
    return collected.result()


# -- on the server ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientVectors:
    """The class vectors of one update that passed screening; `weight` is below 1 where the update is stale."""

    client: ClientInfo
    vectors: Tensor
    labels: Tensor
    weight: float


def client_vectors(
    ctx: Context,
    updates: Sequence[Update[Any]],
    field: str,
    *,
    latest: bool = False,
    screen: bool = True,
    stored: bool = False,
) -> list[ClientVectors]:
    """Return the vectors of each new update's `field` (and its `labels`) that `schedule.robust` lets pass.

    With `latest` those of the latest updates of other clients as well, which are compared with in any case. Without
    `screen` all vectors pass. `stored` vectors never leave the server again: under a robust rule none passes before
    three clients can be compared.
    """
    selected = [(getattr(update.payload, field), update.payload.labels) for update in updates]
    if stored and ctx.averaging.rule != "mean" and len(selected) < min(3, len(ctx.task.clients)):
        selected = [(vectors[:0], labels[:0]) for vectors, labels in selected]
    elif screen:
        selected, _ = screen_rows(ctx.averaging, selected, ctx.task.num_classes)
    return [
        ClientVectors(update.client, vectors, labels, update.weight)
        for update, (vectors, labels) in zip(updates, selected, strict=True)
        if update.fresh or latest
    ]


def stack_vectors(clients: Sequence[ClientVectors]) -> tuple[Tensor, Tensor, Tensor]:
    """Concatenate vectors `[n, d]`, labels `[n]` and weights `[n]` of clients."""
    vectors = torch.cat([client.vectors for client in clients])
    labels = torch.cat([client.labels for client in clients])
    weights = [client.vectors.new_full((len(client.labels),), client.weight) for client in clients]
    return vectors, labels, torch.cat(weights)


def average_vectors(clients: Sequence[ClientVectors], num_classes: int) -> list[ClientVectors]:
    """Return the mean vector of each class over its senders, as if a single client had sent them."""
    if not clients:
        return []
    rows, senders = mean_by_class([(client.vectors, client.labels) for client in clients], num_classes)
    labels = torch.nonzero(senders).flatten()
    weight = add_up(client.weight for client in clients) / len(clients)
    return [ClientVectors(clients[0].client, rows[labels], labels, weight)]


def vector_batches(
    clients: Sequence[ClientVectors], size: int | None = None, rng: torch.Generator | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (vectors, labels, weights) of `size` vectors at a time, or of a client's; with `rng` in random order."""
    columns, counts = list(stack_vectors(clients)), [len(client.labels) for client in clients]
    if rng is not None:
        order = torch.randperm(len(columns[0]), generator=rng)
        columns = [column[order] for column in columns]
    parts = size or [count for count in counts if count]
    if any(counts):
        yield from zip(*(torch.split(column, parts) for column in columns), strict=True)


def server_batches(
    ctx: Context, clients: Sequence[ClientVectors], mode: ServerStep, *, size: int, passes: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (vectors, labels, weights) of every step of a training on the server; `size` is that of minibatches."""
    if mode == "averaged":
        clients = average_vectors(clients, ctx.task.num_classes)
    for number in range(passes):
        if mode == "pooled":
            yield from vector_batches(clients, size, ctx.rng(f"pooled {number}"))
        else:
            yield from vector_batches(clients, None if mode == "per_client" else 1)


def mean_by_class(
    sent: Sequence[Rows],
    num_classes: int,
    *,
    counts: Sequence[Tensor] | None = None,
    how: Averaging = PLAIN,
) -> Rows:
    """Average the (vectors, labels) of clients per class: a table [C, d] and the senders per class [C].

    All vectors count alike, or each by its entry of `counts`; the robust rules of `how` use no weights.
    """
    width = sent[0][0].shape[1]
    total = sent[0][0].new_zeros(num_classes, width)
    senders = torch.zeros(num_classes, dtype=torch.int64, device=total.device)
    for _, labels in sent:
        senders += torch.bincount(labels, minlength=num_classes)
    if how.rule != "mean":
        rows, labels = (torch.cat(column) for column in zip(*sent, strict=True))
        return robust_class_means(how, rows, labels, num_classes), senders
    weight = senders.to(total.dtype) if counts is None else total.new_zeros(num_classes)
    for number, (rows, labels) in enumerate(sent):
        if counts is not None:
            count = counts[number].to(rows.dtype)
            rows = rows * count[:, None]
            weight.index_add_(0, labels, count)
        total.index_add_(0, labels, rows)
    return total / torch.where(weight > 0, weight, 1)[:, None], senders


def screened_mean_by_class(ctx: Context, sent: Sequence[Rows]) -> Rows:
    """Average what `schedule.robust` lets pass, by its rule: a table [C, d] and the senders per class [C]."""
    selected, _ = screen_rows(ctx.averaging, sent, ctx.task.num_classes)
    return mean_by_class(selected, ctx.task.num_classes, how=ctx.averaging)


def update_class_table(
    ctx: Context,
    old: ClassTable,
    updates: Sequence[Update[Any]],
    sent: Sequence[Rows],
    counts: Sequence[Tensor] | None = None,
) -> tuple[ClassTable, Tensor]:
    """Return the table with each class's mean over its senders, and how many senders of a class passed screening.

    In a part of a round, a class that had a row keeps it by as much as is missing to a cohort, and by what stale
    updates count less; a class that had none takes the senders' mean.
    """
    classes, of = len(old.known), round_share(ctx, updates)
    sent, masks = screen_rows(ctx.averaging, sent, classes)
    if counts is not None:
        counts = [count[mask] for count, mask in zip(counts, masks, strict=True)]
        if ctx.averaging.max_share < 1:
            counts = cap_counts(sent, counts, ctx.averaging.max_share)
    if of.whole:
        rows, senders = mean_by_class(sent, classes, counts=counts, how=ctx.averaging)
        return old.replaced(rows, senders > 0), senders
    weights = [
        rows.new_full((len(rows),), update.weight) for update, (rows, _) in zip(updates, sent, strict=True)
    ]
    sizes = [torch.ones_like(weight) for weight in weights]
    if counts is not None:
        sizes = [count.to(weight.dtype) for count, weight in zip(counts, weights, strict=True)]
    discounted = [size * weight for size, weight in zip(sizes, weights, strict=True)]
    rows, senders = mean_by_class(sent, classes, counts=discounted, how=ctx.averaging)
    labels = torch.cat([ids for _, ids in sent])
    present = rows.new_zeros(classes).index_add_(0, labels, torch.cat(sizes))
    moving = rows.new_zeros(classes).index_add_(0, labels, torch.cat(discounted))
    mean_size = present / senders.clamp(min=1).to(rows.dtype)
    share = moving / torch.where(present > 0, present + of.missing * mean_size, 1)
    share = torch.where(old.known, share, 1)[:, None]
    return old.replaced(share * rows + (1 - share) * old.rows, senders > 0), senders


def mean_class_change(
    ctx: Context, like: Tensor, updates: Sequence[Update[Any]], field: str, *, over: str = "senders"
) -> Tensor:
    """Return the mean change of every class's vector in `like` `[C, d]`, zero where no fresh update sent one.

    The mean is over the senders of a class, or over all `participants`. In a part of a round, each fresh update is a
    term of the mean over a cohort's senders.
    """
    classes = len(like)
    weighted = [(update.weight * getattr(update.payload, field), update.payload.labels) for update in updates]
    selected, _ = screen_rows(ctx.averaging, weighted, classes)
    sent = [rows for update, rows in zip(updates, selected, strict=True) if update.fresh]
    mean, terms = mean_by_class(sent, classes, how=ctx.averaging)
    present = torch.zeros_like(terms)
    for update in updates:
        present += torch.bincount(update.payload.labels, minlength=classes)
    missing = round_share(ctx, updates).missing
    part = terms.to(mean.dtype) / (present.to(mean.dtype) + missing).clamp(min=1)
    if over == "participants":
        part = terms.to(mean.dtype) / max(len(updates), ctx.cohort)
    return mean * part[:, None]
