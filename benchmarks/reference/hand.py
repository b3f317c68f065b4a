"""A client for reference loops: tensors and modules without Potluck's training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.model import ClientModel

BIG = 256
"""Samples per pass where nothing is learned."""

Loss = Callable[[Tensor, Tensor], Tensor]
Upload = Mapping[str, Tensor | float]
"""What goes up, under the names of the payload's fields."""


@dataclass
class ReferenceClient:
    """One client: its model and data, what it keeps between rounds, and where random numbers come from."""

    model: ClientModel
    x: Tensor
    y: Tensor
    lr: float
    batch: int
    rng: Callable[[str], torch.Generator]
    kept: dict[str, Any]
    classes: int
    name: str
    seed: int
    public: tuple[Tensor, Tensor] | None = None

    def order(self, count: int | None = None) -> Tensor:
        """One shuffled epoch."""
        return torch.randperm(len(self.y) if count is None else count, generator=self.rng("batches"))

    def train(
        self,
        loss: Loss,
        *,
        models: Sequence[nn.Module] | None = None,
        rows: Tensor | None = None,
        adjust: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> int:
        """One epoch over the client's samples, or over some of them; says how many steps it took."""
        models = [self.model] if models is None else models
        order = self.order() if rows is None else rows[self.order(len(rows))]
        return self.steps(torch.split(order, self.batch), (self.x, self.y), loss, models, adjust, after)

    def steps(
        self,
        batches: Sequence[Tensor],
        data: tuple[Tensor, Tensor],
        loss: Loss,
        models: Sequence[nn.Module],
        adjust: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> int:
        """A step of every model on each of these batches."""
        x, y = data
        optimizers = [torch.optim.SGD(model.parameters(), self.lr) for model in models]
        for model in models:
            model.train()
        for rows in batches:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss(x[rows], y[rows]).backward()  # type: ignore[no-untyped-call]
            if adjust is not None:
                adjust()
            for optimizer in optimizers:
                optimizer.step()
            if after is not None:
                after()
        for model in models:
            model.eval()
        return len(batches)

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(self.model(x), y)

    def means(self) -> Upload:
        """The mean feature of each class, in large batches."""
        sums = ClassSums(self.classes)
        with torch.no_grad():
            for x, y in zip(torch.split(self.x, BIG), torch.split(self.y, BIG), strict=True):
                sums.add(self.model.features(x), y)
        means, labels, _ = sums.result()
        return {"means": means, "labels": labels}


class ClassSums:
    """Sums of vectors and how many there were, class by class."""

    def __init__(self, classes: int) -> None:
        self.classes, self.total, self.count = classes, torch.zeros(0), torch.zeros(0)

    def add(self, vectors: Tensor, y: Tensor) -> None:
        """A batch of them."""
        if not len(self.total):
            self.total = torch.zeros(self.classes, vectors.shape[1])
            self.count = torch.zeros(self.classes, dtype=torch.int64)
        self.total.index_add_(0, y, vectors.detach())
        self.count += torch.bincount(y, minlength=self.classes)

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Means, labels and counts of the classes that were there."""
        labels = self.count.nonzero().flatten()
        return self.total[labels] / self.count[labels, None], labels, self.count[labels]


def upload_fields(field: str, module: nn.Module) -> dict[str, Tensor]:
    """A module's weights and statistics as a field of what goes up."""
    return {
        f"{field}.{name}": tensor.detach().clone()
        for name, tensor in module.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


def with_channels_last(rows: Tensor, labels: Tensor | None, classes: int) -> tuple[Tensor, Tensor]:
    """A row for each class, and which classes have one."""
    if labels is None:
        return rows, torch.ones(classes, dtype=torch.bool)
    table, present = torch.zeros(classes, rows.shape[1]), torch.zeros(classes, dtype=torch.bool)
    table[labels] = rows
    present[labels] = True
    return table, present


def distillation_loss(teacher: Tensor, student: Tensor) -> Tensor:
    """KL from a teacher that stays as it is."""
    target, student_log_probs = F.log_softmax(teacher.detach(), dim=1), F.log_softmax(student, dim=1)
    return F.kl_div(student_log_probs, target, reduction="batchmean", log_target=True)
