"""Labelled tensors: a view of some rows of arrays that may be shared by many clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Transform = Callable[[Tensor], Tensor]


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
        """The model input and labels of some rows of this view."""
        if self.index is not None:
            rows = self.index[rows]
        x, y = self.x[rows], self.y[rows]
        return (x if self.transform is None else self.transform(x)), y

    def select(self, rows: Tensor) -> Samples:
        """A view of some rows of this view."""
        index = rows if self.index is None else self.index[rows]
        return Samples(self.x, self.y, index, self.transform)

    def with_targets(self, targets: Tensor) -> Samples:
        """The same rows with other targets, one per row: soft labels of public data, say."""
        if self.index is None:
            return Samples(self.x, targets, None, self.transform)
        y = targets.new_zeros(len(self.x), *targets.shape[1:])
        y[self.index] = targets
        return Samples(self.x, y, self.index, self.transform)

    def classes(self) -> Tensor:
        """The distinct labels present, ascending."""
        classes: Tensor = torch.unique(self.labels)
        return classes
