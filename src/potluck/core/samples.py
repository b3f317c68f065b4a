"""Labelled samples as views of shared arrays, batched outputs over them, and class means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from potluck.core.task import Task

Transform = Callable[[Tensor], Tensor]
PREFETCH_VALUES = 1 << 20
"""How many input values of the next batches are gathered at once."""


@dataclass(frozen=True)
class Samples:
    """Rows `index` of `x` and `y`; `transform` turns raw rows (uint8 pixels, say) into model input.

    The arrays are never copied: ten thousand clients can hold views of one memory-mapped file.
    """

    x: Tensor
    y: Tensor
    index: Tensor | None = None
    transform: Transform | None = None

    def __len__(self) -> int:
        return len(self.y) if self.index is None else len(self.index)

    @property
    def labels(self) -> Tensor:
        """The labels of these rows, in order."""
        return self.y if self.index is None else self.y[self.index]

    def take(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the model input and labels of some rows of this view."""
        if self.index is not None:
            rows = self.index[rows]
        x, y = self.x[rows], self.y[rows]
        return (x if self.transform is None else self.transform(x)), y

    def select(self, rows: Tensor) -> Samples:
        """Return a view of some rows of this view."""
        index = rows if self.index is None else self.index[rows]
        return Samples(self.x, self.y, index, self.transform)

    def with_targets(self, targets: Tensor) -> Samples:
        """Return the same rows with other targets, one per row: soft labels of public data, say."""
        if self.index is None:
            return Samples(self.x, targets, None, self.transform)
        y = targets.new_zeros(len(self.x), *targets.shape[1:])
        y[self.index] = targets
        return Samples(self.x, y, self.index, self.transform)

    def classes(self) -> Tensor:
        """Return the distinct labels present, ascending."""
        classes: Tensor = torch.unique(self.labels)
        return classes


EVALUATION_BATCH = 256


def prepare(x: Tensor, y: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """Return a batch on the task's device, its real numbers in the task's precision."""
    dtype = task.dtype if x.is_floating_point() else x.dtype
    return x.to(device=task.device, dtype=dtype), y.to(task.device)


def batches_in_order(
    samples: Samples, order: Tensor, size: int, task: Task
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield prepared batches of `size` rows in the given order; the last one may be smaller.

    Rows are gathered and converted for several batches at once, to save calls per step.
    """
    ahead = max(1, PREFETCH_VALUES // max(1, size * samples.x.shape[1:].numel()))
    for rows in torch.split(order, size * ahead):
        xs, ys = prepare(*samples.take(rows), task)
        yield from zip(torch.split(xs, size), torch.split(ys, size), strict=True)


def evaluation_batches(count: int) -> list[Tensor]:
    """Return the positions of so many samples in large batches."""
    batches = list(torch.split(torch.arange(count), EVALUATION_BATCH))
    if len(batches) > 1 and len(batches[-1]) == 1:  # a norm without statistics cannot take one sample alone
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def outputs(
    function: Callable[[Tensor], Tensor], samples: Samples, task: Task
) -> Iterator[tuple[Tensor, Tensor]]:
    """`function` over all samples in large batches, no gradient; yields (outputs, labels)."""
    with torch.no_grad():
        for rows in evaluation_batches(len(samples)):
            x, y = prepare(*samples.take(rows), task)
            yield function(x), y


class ClassMean:
    """Accumulates vectors per class and gives the exact mean of each class seen."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.total: Tensor | None = None
        self.count: Tensor | None = None

    def clear(self) -> None:
        """Forget what was added."""
        self.total = self.count = None

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        """Add a batch of vectors with their labels."""
        vectors = vectors.detach()
        if vectors.dtype in (torch.bfloat16, torch.float16):  # sums need more bits than mixed precision gives
            vectors = vectors.float()
        if self.total is None or self.count is None:
            self.total = vectors.new_zeros(self.num_classes, vectors.shape[1])
            self.count = labels.new_zeros(self.num_classes)
        self.total.index_add_(0, labels, vectors)
        self.count += torch.bincount(labels, minlength=self.num_classes)

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """(means [k, d], labels [k], counts [k]) of the classes seen, ascending."""
        if self.total is None or self.count is None:
            raise ValueError("no vectors were added")
        labels = torch.nonzero(self.count).flatten()
        counts = self.count[labels]
        return self.total[labels] / counts[:, None].to(self.total.dtype), labels, counts
