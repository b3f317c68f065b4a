"""Index slices of the widest model's tensors: what a narrower member of a nested family holds of them.

A dimension of equal size is taken whole. Of a larger one a window is taken that depends on its full size alone,
so layers of one width keep the same indices, and the two branches of a residual sum stay aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from potluck.core.method import Update
from potluck.core.payload import Tensors
from potluck.core.task import Architecture, Context, Task
from potluck.kit.averages import portion
from potluck.kit.robust import centre, clip_changes

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
    """Every scalar's plain mean over the slices that hold it, or the robust average that is asked for.

    Where the answers are no whole cohort, the changes of the slices are averaged, and the old values move by them.
    """

    def __init__(self, ctx: Context, old: Mapping[str, Tensor], updates: Sequence[Update[Any]]) -> None:
        self.how, self.of, self.old = ctx.averaging, portion(ctx, updates), old
        self.total = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
        self.count = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
        self.slices: dict[str, list[tuple[Tensor, tuple[Tensor, ...]]]] = {name: [] for name in old}

    def add(
        self, name: str, slice_: Tensor, rows: list[Tensor], sent: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """Add a slice that lies at these indices, that was `sent` with other values and counts by `weight`."""
        where = mesh(rows)
        if not self.of.whole:
            change = slice_ - (self.old[name][where] if sent is None else sent)
            slice_ = self.old[name][where] + weight * change
        if self.how.rule != "mean":
            self.slices[name].append((slice_, where))
            return
        self.total[name][where] += slice_ if self.of.whole else slice_ - self.old[name][where]
        self.count[name][where] += 1

    def result(self) -> Tensors:
        """The means; a scalar that nobody holds keeps its old value."""
        return {
            name: self._robust(name) if self.how.rule != "mean" else self._mean(name) for name in self.old
        }

    def _mean(self, name: str) -> Tensor:
        old, total, count = self.old[name], self.total[name], self.count[name]
        if self.of.whole:
            return torch.where(count > 0, total / count.clamp(min=1), old)
        return old + self.of.share * total / (count + self.of.missing).clamp(min=1)

    def _robust(self, name: str) -> Tensor:
        """Slices laid over each other; changes are clipped tensor by tensor, since slices differ in size."""
        old, slices = self.old[name], self.slices[name]
        if not slices:
            return old.clone()
        if self.how.clips:
            parts = [{name: _placed(old, *one)} for one in slices]
            clipped = clip_changes(parts, {name: old})
            slices = [(part[name][where], where) for part, (_, where) in zip(clipped, slices, strict=True)]
        absent = torch.full_like(old, float("nan"))
        stack = torch.stack([_placed(absent, *one) for one in slices])
        middle = torch.nanmean(stack, dim=0) if self.how.clips else centre(self.how, stack)
        middle = torch.where(torch.isnan(stack).all(dim=0), old, middle)
        if self.of.whole:
            return middle
        held = (~torch.isnan(stack)).sum(dim=0)
        return old + self.of.share * (middle - old) * held / (held + self.of.missing).clamp(min=1)


def _placed(ground: Tensor, slice_: Tensor, where: tuple[Tensor, ...]) -> Tensor:
    placed = ground.clone()
    placed[where] = slice_
    return placed
