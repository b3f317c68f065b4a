"""Index slices of the widest model's tensors: what a narrower member of a nested family holds of them.

A dimension of equal size is taken whole. Of a larger one a window is taken that depends on its full size alone,
so layers of one width keep the same indices, and the two branches of a residual sum stay aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from potluck.core.payload import Tensors
from potluck.core.task import Architecture, Task

Window = Callable[[int, int], Tensor]
"""`window(size, full)`: which `size` of the indices 0 … full - 1 are kept."""


def corner(size: int, full: int) -> Tensor:
    """The first `size` indices."""
    return torch.arange(size)


def widest(task: Task) -> Architecture:
    """The architecture with the most numbers, of which the others are slices."""
    return max(task.architectures.values(), key=lambda a: sum(t.numel() for t in a.initial.values()))


def indices(shape: tuple[int, ...], full: tuple[int, ...], window: Window) -> list[Tensor]:
    """The indices kept in each dimension."""
    return [
        torch.arange(size) if size == whole else window(size, whole)
        for size, whole in zip(shape, full, strict=True)
    ]


def take(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], window: Window) -> Tensors:
    """Slices of the given shapes, as copies."""
    return {
        name: tensors[name][mesh(indices(shape, tuple(tensors[name].shape), window))].clone()
        for name, shape in shapes.items()
    }


def mesh(rows: list[Tensor]) -> tuple[Tensor, ...]:
    """Indices per dimension as one open mesh that addresses every combination of them."""
    return tuple(
        row.reshape([-1 if place == number else 1 for place in range(len(rows))])
        for number, row in enumerate(rows)
    )


class SliceMean:
    """Every scalar's plain mean over the slices that hold it."""

    def __init__(self, old: Mapping[str, Tensor]) -> None:
        self.old = old
        self.total = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
        self.count = {name: torch.zeros_like(tensor) for name, tensor in old.items()}

    def add(self, name: str, slice_: Tensor, rows: list[Tensor]) -> None:
        """Add a slice that lies at these indices."""
        where = mesh(rows)
        self.total[name][where] += slice_
        self.count[name][where] += 1

    def result(self) -> Tensors:
        """The means; a scalar that nobody holds keeps its old value."""
        return {
            name: torch.where(self.count[name] > 0, self.total[name] / self.count[name].clamp(min=1), old)
            for name, old in self.old.items()
        }
