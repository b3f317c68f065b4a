"""What methods that exchange one vector per class share: the table, its message, its loss, its collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from potluck.core.client import Client
from potluck.core.model import ClientModel
from potluck.core.payload import Payload
from potluck.core.schema import Labels, Shape
from potluck.core.task import Task
from potluck.core.toolkit import ClassMean, scatter_rows


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


def fit_collecting(
    me: Client,
    loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    batches: Iterable[tuple[Tensor, Tensor]],
    means: ClassMean,
    optimizer: Optimizer | None = None,
) -> None:
    """Train on `loss(x, y) -> (value, vectors)`; each batch's vectors, from before its step, go to `means`."""
    optimizer = me.optimizer(me.model) if optimizer is None else optimizer
    total, steps = torch.zeros((), device=me.task.device, dtype=me.task.dtype), 0
    with me.training_mode(me.model):
        for x, y in batches:
            value, vectors = loss(x, y)
            means.add(vectors, y)
            me.step(optimizer, value)
            total += value.detach()
            steps += 1
    me.report(steps, float(total) / steps if steps else float("nan"))
