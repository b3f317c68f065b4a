"""Index slices of the widest model's tensors: what a narrower member of a nested family holds of them.

A dimension of equal size is taken whole. Of a larger one a window is taken that depends on its full size alone,
so layers of one width keep the same indices, and the two branches of a residual sum stay aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from potluck.core import robust
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
    """Every scalar's plain mean over the slices that hold it, or the robust average that the loop asks for."""

    def __init__(self, old: Mapping[str, Tensor]) -> None:
        self.old = old
        self.how = robust.current()
        self.total = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
        self.count = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
        self.slices: dict[str, list[tuple[Tensor, tuple[Tensor, ...]]]] = {name: [] for name in old}

    def add(self, name: str, slice_: Tensor, rows: list[Tensor]) -> None:
        """Add a slice that lies at these indices."""
        where = mesh(rows)
        if self.how.rule != "mean":
            self.slices[name].append((slice_, where))
            return
        self.total[name][where] += slice_
        self.count[name][where] += 1

    def result(self) -> Tensors:
        """The means; a scalar that nobody holds keeps its old value."""
        if self.how.rule != "mean":
            return {name: self._robust(name) for name in self.old}
        return {
            name: torch.where(self.count[name] > 0, self.total[name] / self.count[name].clamp(min=1), old)
            for name, old in self.old.items()
        }

    def _robust(self, name: str) -> Tensor:
        """Slices laid over each other; changes are clipped tensor by tensor, since slices differ in size."""
        old, slices = self.old[name], self.slices[name]
        if not slices:
            return old.clone()
        if self.how.clips:
            parts = [{name: _placed(old, *one)} for one in slices]
            clipped = robust.clip_changes(parts, {name: old})
            slices = [(part[name][where], where) for part, (_, where) in zip(clipped, slices, strict=True)]
        absent = torch.full_like(old, float("nan"))
        stack = torch.stack([_placed(absent, *one) for one in slices])
        middle = torch.nanmean(stack, dim=0) if self.how.clips else self.how.centre(stack)
        return torch.where(torch.isnan(stack).all(dim=0), old, middle)


def _placed(ground: Tensor, slice_: Tensor, where: tuple[Tensor, ...]) -> Tensor:
    placed = ground.clone()
    placed[where] = slice_
    return placed
