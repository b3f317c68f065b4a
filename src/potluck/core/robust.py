"""Averages that one poisoned answer cannot carry away.

The loop says for the time of a server step which kind of average is wanted; the few functions that take averages
for all methods (`toolkit.layerwise_average`, `toolkit.mean_rows`, `slicing.SliceMean`) ask here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from potluck.core.payload import Tensors

Rule = Literal["mean", "median", "trimmed-mean", "norm-clip"]


@dataclass(frozen=True)
class Averaging:
    """`median` and `trimmed-mean` go scalar by scalar and count every answer alike, whatever its samples.

    `trimmed-mean` leaves out the share `trim` at either end (at least one answer where there are three).
    `norm-clip` shortens changes that are longer than the median one and then takes the usual mean.
    """

    rule: Rule = "mean"
    trim: float = 0.1

    @property
    def ranks(self) -> bool:
        """Whether scalars are ordered instead of summed."""
        return self.rule in ("median", "trimmed-mean")

    @property
    def clips(self) -> bool:
        """Whether long changes are shortened first."""
        return self.rule == "norm-clip"

    def centre(self, stack: Tensor) -> Tensor:
        """The middle over the first dimension, where not-a-number means that nothing was sent; 0 if by nobody."""
        ordered = stack.sort(dim=0).values  # not-a-number comes last
        sent = (~torch.isnan(stack)).sum(dim=0)
        if self.rule == "median":
            low, high = (sent - 1).clamp(min=0) // 2, sent // 2 + 1
        else:
            cut = torch.maximum((self.trim * sent).long(), (sent >= 3).long())
            low, high = cut, sent - cut
        rank = torch.arange(len(stack), device=stack.device).reshape(-1, *[1] * (stack.dim() - 1))
        kept = (rank >= low) & (rank < high) & (rank < sent)
        return torch.where(kept, ordered, torch.zeros_like(ordered)).sum(dim=0) / (high - low).clamp(min=1)


_current: ContextVar[Averaging] = ContextVar("averaging", default=Averaging())  # noqa: B039 - it is frozen


def current() -> Averaging:
    """How averages are taken now."""
    return _current.get()


@contextmanager
def averaging(how: Averaging) -> Iterator[None]:
    """Take averages this way inside the block."""
    token = _current.set(how)
    try:
        yield
    finally:
        _current.reset(token)


def clip_changes(parts: Sequence[Tensors], old: Mapping[str, Tensor]) -> list[Tensors]:
    """Every part at most as far from `old` as the median part is, in the same direction."""
    changes = [{name: part[name] - old[name] for name in part if name in old} for part in parts]
    norms = [_norm(change) for change in changes]
    limit = _median(torch.stack(norms)) if norms else torch.zeros(())
    return [
        {name: old[name] + _shortened(step, norm, limit) for name, step in change.items()}
        for change, norm in zip(changes, norms, strict=True)
    ]


def _norm(tensors: Tensors) -> Tensor:
    squares = [tensor.double().square().sum() for tensor in tensors.values()]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)


def _median(values: Tensor) -> Tensor:
    return Averaging("median").centre(values)


def _shortened(step: Tensor, norm: Tensor, limit: Tensor) -> Tensor:
    return step * (limit / norm).to(step.dtype) if norm > limit else step


def by_class(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Rows laid out `[most per class, classes, width]`, with not-a-number where a class has fewer."""
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels, minlength=classes)
    first = torch.cumsum(counts, dim=0) - counts
    place = torch.arange(len(labels), device=labels.device) - first[labels[order]]
    table = rows.new_full((max(1, int(counts.max())), classes, rows.shape[1]), float("nan"))
    table[place, labels[order]] = rows[order]
    return table


def middle_rows(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Per class the robust average of the rows that came for it, `[classes, width]`; zeros for no row."""
    how, table = current(), by_class(rows, labels, classes)
    if how.clips:
        norms = table.norm(dim=2, keepdim=True)
        limit = _median(norms)
        table = torch.where(norms > limit, table * (limit / norms), table)
        return torch.nan_to_num(torch.nanmean(table, dim=0))
    return how.centre(table)
