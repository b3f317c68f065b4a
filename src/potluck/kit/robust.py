"""Rules that a few poisoned answers cannot carry away: medians, trimmed means, bounded lengths; also per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from potluck.core.payload import Tensors
from potluck.core.task import Averaging
from potluck.kit.nearness import answer_weights, expected


def centre(how: Averaging, stack: Tensor) -> Tensor:
    """The middle over the first dimension, where not-a-number means that nothing was sent; 0 if by nobody."""
    ordered = stack.sort(dim=0).values  # not-a-number comes last
    sent = (~torch.isnan(stack)).sum(dim=0)
    if how.rule == "median":
        low, high = (sent - 1).clamp(min=0) // 2, sent // 2 + 1
    else:
        cut = expected(how, sent)
        low, high = cut, sent - cut
    rank = torch.arange(len(stack), device=stack.device).reshape(-1, *[1] * (stack.dim() - 1))
    kept = (rank >= low) & (rank < high) & (rank < sent)
    return torch.where(kept, ordered, torch.zeros_like(ordered)).sum(dim=0) / (high - low).clamp(min=1)


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
    return centre(Averaging("median"), values)


def _shortened(step: Tensor, norm: Tensor, limit: Tensor) -> Tensor:
    return step * (limit / norm).to(step.dtype) if norm > limit else step


def places(labels: Tensor, classes: int) -> Tensor:
    """The number of each row among those of its class."""
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels, minlength=classes)
    first = torch.cumsum(counts, dim=0) - counts
    place = torch.empty_like(labels)
    place[order] = torch.arange(len(labels), device=labels.device) - first[labels[order]]
    return place


def by_class(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Rows laid out `[most per class, classes, width]`, with not-a-number where a class has fewer."""
    place = places(labels, classes)
    most = int(place.max()) + 1 if len(place) else 1
    table = rows.new_full((most, classes, rows.shape[1]), float("nan"))
    table[place, labels] = rows
    return table


def middle_rows(how: Averaging, rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Per class the robust average of the rows that came for it, `[classes, width]`; zeros for no row."""
    table = by_class(rows, labels, classes)
    if how.clips:
        norms = table.norm(dim=2, keepdim=True)
        limit = _median(norms)
        table = torch.where(norms > limit, table * (limit / norms), table)
        return torch.nan_to_num(torch.nanmean(table, dim=0))
    if how.weighs:
        weights = row_weights(how, rows, labels, classes)
        total = rows.new_zeros(classes, rows.shape[1])
        return total.index_add_(0, labels, weights[:, None].to(rows.dtype) * rows)
    return centre(how, table)


def row_weights(how: Averaging, rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """How much each row counts among those of its class, by krum or the geometric median."""
    table = by_class(rows.double(), labels, classes).transpose(0, 1)  # [classes, most per class, width]
    here = ~torch.isnan(table).any(dim=2) if rows.shape[1] else table.new_ones(table.shape[:2]).bool()
    table = torch.nan_to_num(table)
    squares = torch.cdist(table, table, compute_mode="donot_use_mm_for_euclid_dist").square()
    return answer_weights(how, squares, here)[labels, places(labels, classes)]
