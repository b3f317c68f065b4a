"""What methods that exchange one vector per class share: the table, its message, its loss, its collection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from potluck.core.method import Update
from potluck.core.model import ClientModel
from potluck.core.payload import Payload
from potluck.core.samples import ClassMean
from potluck.core.schema import Labels, Shape
from potluck.core.task import Averaging, Context, Task
from potluck.kit.averages import portion
from potluck.kit.robust import middle_rows
from potluck.kit.screen import screened
from potluck.kit.shares import capped_counts


@dataclass(frozen=True)
class ClassRows(Payload):
    """Server to client: one vector per known class. Without `labels` all classes are there, in order."""

    rows: Annotated[Tensor, Shape("rows", "width")]
    labels: Annotated[Tensor, Labels()] | None = None

    def table(self, num_classes: int) -> ClassTable:
        """The rows laid out by class id."""
        labels = torch.arange(num_classes, device=self.rows.device) if self.labels is None else self.labels
        return ClassTable(*scatter_rows(self.rows, labels, num_classes))


@dataclass
class ClassTable:
    """A vector per class `[C, d]` and which classes have one; the rows of the others mean nothing."""

    rows: Tensor
    known: Tensor

    @classmethod
    def empty(cls, task: Task, width: int) -> ClassTable:
        """No class has a vector yet."""
        rows = torch.zeros(task.num_classes, width, dtype=task.dtype, device=task.device)
        return cls(rows, torch.zeros(task.num_classes, dtype=torch.bool, device=task.device))

    def replaced(self, rows: Tensor, fresh: Tensor) -> ClassTable:
        """The table with the `fresh` classes' rows taken from `rows`; the others keep theirs."""
        return ClassTable(torch.where(fresh[:, None], rows, self.rows), self.known | fresh)

    def message(self, *, ids: bool = False) -> ClassRows:
        """The known rows; class ids travel only where rows are missing, or if a paper always sends them."""
        labels = torch.nonzero(self.known).flatten()
        complete = len(labels) == len(self.known)
        return ClassRows(self.rows[labels], None if complete and not ids else labels)


def row_loss(vectors: Tensor, y: Tensor, rows: Tensor, known: Tensor) -> Tensor:
    """Squared distance to the class's row, mean over entries and batch; unknown classes contribute zero."""
    squared = (vectors - rows[y]).square().mean(dim=1)
    return (squared * known[y]).mean()


def prototype_loss(
    model: ClientModel, x: Tensor, y: Tensor, rows: Tensor, known: Tensor, weight: float
) -> Tensor:
    """CE + λ·MSE(z, p_y), over the classes that have a prototype."""
    features = model.features(x)
    return cross_entropy(model.head(features), y) + weight * row_loss(features, y, rows, known)


def nearest_row(vectors: Tensor, table: ClassTable) -> Tensor:
    """Scores: minus the distance to each class's row; classes without a row come last, by a finite score."""
    # Exact distances: the faster product form makes a score depend on the size of its batch.
    scores = -torch.cdist(vectors, table.rows, compute_mode="donot_use_mm_for_euclid_dist")
    worst = scores[:, table.known].amin(dim=1, keepdim=True) - 1
    return torch.where(table.known, scores, worst)


def collecting(
    loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], means: ClassMean
) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss for `me.fit_models`; the vectors that it also gives, from before each step, go to `means`."""

    def value(x: Tensor, y: Tensor) -> Tensor:
        found, vectors = loss(x, y)
        means.add(vectors, y)
        return found

    return value


def scatter_rows(rows: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Rows laid out by class id: a full table [C, d] (zeros where absent) and a mask of present classes."""
    table = rows.new_zeros(num_classes, rows.shape[1])
    table[labels] = rows
    present = torch.zeros(num_classes, dtype=torch.bool, device=rows.device)
    present[labels] = True
    return table, present


def mean_rows(
    how: Averaging,
    sent: Sequence[tuple[Tensor, Tensor]],
    num_classes: int,
    counts: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean per class over the (rows, labels) that hold it: table [C, d], senders per class [C].

    All rows count alike, or each by its entry of `counts`; the robust rules know no weights.
    """
    width = sent[0][0].shape[1]
    total = sent[0][0].new_zeros(num_classes, width)
    senders = torch.zeros(num_classes, dtype=torch.int64, device=total.device)
    for _, labels in sent:
        senders += torch.bincount(labels, minlength=num_classes)
    if how.rule != "mean":
        rows, labels = (torch.cat(column) for column in zip(*sent, strict=True))
        return middle_rows(how, rows, labels, num_classes), senders
    weight = senders.to(total.dtype) if counts is None else total.new_zeros(num_classes)
    for number, (rows, labels) in enumerate(sent):
        if counts is not None:
            mine = counts[number].to(rows.dtype)
            rows = rows * mine[:, None]
            weight.index_add_(0, labels, mine)
        total.index_add_(0, labels, rows)
    return total / torch.where(weight > 0, weight, 1)[:, None], senders


def fold_rows(
    ctx: Context,
    old: ClassTable,
    updates: Sequence[Update[Any]],
    sent: Sequence[tuple[Tensor, Tensor]],
    counts: Sequence[Tensor] | None = None,
) -> tuple[ClassTable, Tensor]:
    """The table with each class's mean over its senders, and how many senders a class had that could be believed.

    Where the answers are no whole cohort, a class that had a row keeps it by as much as is missing to one, and by what
    stale answers count less; a class that had none takes the senders' mean.
    """
    classes, of = len(old.known), portion(ctx, updates)
    sent, kept = screened(ctx.averaging, sent, classes)
    counts = None if counts is None else [mine[mask] for mine, mask in zip(counts, kept, strict=True)]
    if counts is not None and ctx.averaging.max_share < 1:
        counts = capped_counts(sent, counts, ctx.averaging.max_share)
    if of.whole:
        rows, senders = mean_rows(ctx.averaging, sent, classes, counts)
        return old.replaced(rows, senders > 0), senders
    weights = [
        rows.new_full((len(rows),), update.weight) for update, (rows, _) in zip(updates, sent, strict=True)
    ]
    sizes = [torch.ones_like(weight) for weight in weights]
    if counts is not None:
        sizes = [count.to(weight.dtype) for count, weight in zip(counts, weights, strict=True)]
    discounted = [size * weight for size, weight in zip(sizes, weights, strict=True)]
    rows, senders = mean_rows(ctx.averaging, sent, classes, discounted)
    labels = torch.cat([one for _, one in sent])
    there = rows.new_zeros(classes).index_add_(0, labels, torch.cat(sizes))
    moving = rows.new_zeros(classes).index_add_(0, labels, torch.cat(discounted))
    usual = there / senders.clamp(min=1).to(rows.dtype)
    share = moving / torch.where(there > 0, there + of.missing * usual, 1)
    share = torch.where(old.known, share, 1)[:, None]
    return old.replaced(share * rows + (1 - share) * old.rows, senders > 0), senders
