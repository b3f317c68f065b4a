"""Index slices of the widest model's tensors: what a narrower model of a width-nested family has of them.

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
from potluck.kit.averages import WHOLE_ROUND, round_share
from potluck.kit.robust import clip_changes, coordinatewise_average

Window = Callable[[int, int], Tensor]
"""`window(size, full)`: which `size` of the indices 0 … full - 1 are kept."""


def leading_indices(size: int, full: int) -> Tensor:
    """Return the first `size` indices."""
    return torch.arange(size)


def widest_architecture(task: Task) -> Architecture:
    """Return the architecture with the most numbers, of which the others are slices."""
    return max(task.architectures.values(), key=lambda a: sum(t.numel() for t in a.initial.values()))


def slice_indices(shape: Sequence[int], full: Sequence[int], window: Window) -> list[Tensor]:
    """Return the indices kept in each dimension."""
    return [
        torch.arange(size) if size == full_size else window(size, full_size)
        for size, full_size in zip(shape, full, strict=True)
    ]


def take_slices(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], window: Window
) -> Tensors:
    """Return slices of the given shapes, as copies."""
    return {
        name: tensors[name][index_mesh(slice_indices(shape, tensors[name].shape, window))].clone()
        for name, shape in shapes.items()
    }


def index_mesh(indices: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Shape the indices per dimension as an open mesh that addresses every combination of them."""
    return tuple(
        index.reshape([-1 if place == number else 1 for place in range(len(indices))])
        for number, index in enumerate(indices)
    )


class SliceMean:
    """Averages every scalar over the slices that have it, or takes the robust average that `schedule.robust` sets.

    `select` returns the tensors of a payload. In a part of a round the changes of the slices since each update's
    message are averaged, and the old values move by them; `whole` averages the values themselves in any case.
    """

    def __init__(
        self,
        ctx: Context,
        old: Mapping[str, Tensor],
        updates: Sequence[Update[Any]],
        select: Callable[[Any], Tensors],
        *,
        whole: bool = False,
    ) -> None:
        self.how, self.share, self.old, self.select = ctx.averaging, round_share(ctx, updates), old, select
        if whole:
            self.share = WHOLE_ROUND
        self.total = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
        self.count = {name: torch.zeros_like(tensor) for name, tensor in old.items()}
        self.slices: dict[str, list[tuple[Tensor, tuple[Tensor, ...]]]] = {name: [] for name in old}

    def add(self, update: Update[Any], window: Window, *, head_rows: Tensor | None = None) -> None:
        """Add an update's slices, which lie in this window; of the head only `head_rows`, where given."""
        sent = {} if update.sent is None else self.select(update.sent)
        for name, tensor in self.select(update.payload).items():
            indices, base = slice_indices(tensor.shape, self.old[name].shape, window), sent.get(name)
            if head_rows is not None and name.startswith("head."):
                indices[0], tensor = head_rows.cpu(), tensor[head_rows]
                base = None if base is None else base[head_rows]
            self._add(name, tensor, index_mesh(indices), base, update.weight)

    def _add(
        self, name: str, tensor: Tensor, where: tuple[Tensor, ...], base: Tensor | None, weight: float
    ) -> None:
        if not self.share.whole:
            old = self.old[name][where]
            tensor = old + weight * (tensor - (old if base is None else base))
        if self.how.rule != "mean":
            self.slices[name].append((tensor, where))
            return
        self.total[name][where] += tensor if self.share.whole else tensor - old
        self.count[name][where] += 1

    def result(self) -> Tensors:
        """Return the means; a scalar that no slice has keeps its old value."""
        return {
            name: self._robust(name) if self.how.rule != "mean" else self._mean(name) for name in self.old
        }

    def _mean(self, name: str) -> Tensor:
        old, total, count = self.old[name], self.total[name], self.count[name]
        if self.share.whole:
            return torch.where(count > 0, total / count.clamp(min=1), old)
        return old + self.share.share * total / (count + self.share.missing).clamp(min=1)

    def _robust(self, name: str) -> Tensor:
        """Lay slices over each other; changes are clipped tensor by tensor, since slices differ in size."""
        old, slices = self.old[name], self.slices[name]
        if not slices:
            return old.clone()
        if self.how.clips_updates:
            parts = [{name: _placed(old, *each)} for each in slices]
            clipped = clip_changes(parts, {name: old})
            slices = [(part[name][where], where) for part, (_, where) in zip(clipped, slices, strict=True)]
        absent = torch.full_like(old, float("nan"))
        stack = torch.stack([_placed(absent, *each) for each in slices])
        if self.how.clips_updates:
            average = torch.nanmean(stack, dim=0)
        else:
            average = coordinatewise_average(self.how, stack)
        average = torch.where(torch.isnan(stack).all(dim=0), old, average)
        if self.share.whole:
            return average
        senders = (~torch.isnan(stack)).sum(dim=0)
        return old + self.share.share * (average - old) * senders / (senders + self.share.missing).clamp(
            min=1
        )


def _placed(background: Tensor, tensor: Tensor, where: tuple[Tensor, ...]) -> Tensor:
    placed = background.clone()
    placed[where] = tensor
    return placed
