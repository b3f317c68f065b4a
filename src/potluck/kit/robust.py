"""Robust aggregation: medians, trimmed means, krum, geometric median, norm clipping, screening by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from potluck.core.payload import Tensors
from potluck.core.task import Averaging

ROUNDS = 100
"""Steps of Weiszfeld's iteration; among a hundred answers it moves no further than rounding long before."""


def expected(how: Averaging, sent: Tensor) -> Tensor:
    """Return how many of so many answers may come from attackers: rounded up, but fewer than half."""
    return torch.minimum((how.attackers * sent.double() - 1e-9).ceil().long(), (sent - 1).clamp(min=0) // 2)


def robust_weights(how: Averaging, squares: Tensor, present: Tensor) -> Tensor:
    """Return how much each answer counts; the weights of a group sum to one."""
    if how.rule == "krum":
        counts = krum(how, squares, present).double()
    else:
        counts = geometric_median(squares, present)
    return counts / counts.sum(dim=1, keepdim=True).clamp(min=1e-300)


def krum(how: Averaging, squares: Tensor, present: Tensor) -> Tensor:
    """Return which answers are nearest to their neighbours: all but as many as may come from attackers (multi-krum)."""
    sent = present.sum(dim=1)
    liars = expected(how, sent)
    comparable = (
        present[:, None]
        & present[:, :, None]
        & ~torch.eye(present.shape[1], dtype=torch.bool, device=present.device)
    )
    nearest = squares.masked_fill(~comparable, float("inf")).sort(dim=2).values
    neighbours = (sent - liars - 2).clamp(min=1)
    rank = torch.arange(present.shape[1], device=present.device)
    counted = nearest.masked_fill((rank >= neighbours[:, None, None]) | nearest.isinf(), 0.0)
    scores = counted.sum(dim=2).masked_fill(~present, float("inf"))
    place = scores.argsort(dim=1, stable=True).argsort(dim=1)
    return present & (place < (sent - liars)[:, None])


def geometric_median(squares: Tensor, present: Tensor) -> Tensor:
    """Return weights whose mean is the point with the smallest sum of distances to all answers.

    With weights w that sum to one, |x_i − Σ w_j x_j|² = Σ_j w_j d²_ij − ½ Σ_jk w_j w_k d²_jk.
    """
    present_weights = present.double()
    weights = present_weights / present_weights.sum(dim=1, keepdim=True).clamp(min=1)
    # A point that lies on an answer would be at distance 0 from it; so near it does not matter any more.
    least = 1e-9 * squares.amax(dim=(1, 2)).sqrt()[:, None] + 1e-150
    for _ in range(ROUNDS):
        mixed = (squares @ weights[:, :, None])[:, :, 0]
        distances = (mixed - 0.5 * (weights * mixed).sum(dim=1, keepdim=True)).clamp(min=0).sqrt()
        closeness = present_weights / torch.maximum(distances, least)
        weights = closeness / closeness.sum(dim=1, keepdim=True).clamp(min=1e-300)
    return weights


def update_weights(how: Averaging, parts: Sequence[Tensors]) -> list[float]:
    """Return each answer's weight. Answers are compared by the mean square over the names that both have."""
    count = len(parts)
    squares, sizes = (torch.zeros(count, count, dtype=torch.float64) for _ in range(2))
    for name in sorted({name for part in parts for name in part}):
        owners = torch.tensor([number for number, part in enumerate(parts) if name in part])
        rows = torch.stack(
            [parts[number][name].detach().double().flatten() for number in owners.tolist()]
        ).cpu()
        apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
        where = owners[:, None], owners[None]
        squares[where] += apart
        sizes[where] += rows.shape[1]
    # Answers without a common name say nothing of each other: they are as far apart as the median.
    comparable = (sizes > 0) & ~torch.eye(count, dtype=torch.bool)
    apart = squares / sizes.clamp(min=1)
    typical = apart[comparable].median() if comparable.any() else torch.zeros(())
    apart = torch.where(comparable | torch.eye(count, dtype=torch.bool), apart, typical)
    weights = robust_weights(how, apart[None], torch.ones(1, count, dtype=torch.bool))[0]
    result: list[float] = weights.tolist()
    return result


def coordinatewise_average(how: Averaging, stack: Tensor) -> Tensor:
    """Return the middle over the first dimension; not-a-number means not sent, and 0 is for no client at all."""
    ordered = stack.sort(dim=0).values  # not-a-number comes last
    sent = (~torch.isnan(stack)).sum(dim=0)
    if how.rule == "median":
        low, high = (sent - 1).clamp(min=0) // 2, sent // 2 + 1
    else:
        cut = expected(how, sent)
        low, high = cut, sent - cut
    rank = torch.arange(len(stack), device=stack.device).reshape(-1, *[1] * (stack.dim() - 1))
    in_range = (rank >= low) & (rank < high) & (rank < sent)
    return torch.where(in_range, ordered, torch.zeros_like(ordered)).sum(dim=0) / (high - low).clamp(min=1)


def clip_changes(parts: Sequence[Tensors], old: Mapping[str, Tensor]) -> list[Tensors]:
    """Return every part at most as far from `old` as the median part is, in the same direction."""
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
    return coordinatewise_average(Averaging("median"), values)


def _shortened(step: Tensor, norm: Tensor, limit: Tensor) -> Tensor:
    return step * (limit / norm).to(step.dtype) if norm > limit else step


def places(labels: Tensor, classes: int) -> Tensor:
    """Return the number of each row among those of its class."""
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels, minlength=classes)
    first = torch.cumsum(counts, dim=0) - counts
    place = torch.empty_like(labels)
    place[order] = torch.arange(len(labels), device=labels.device) - first[labels[order]]
    return place


def group_by_class(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return rows laid out `[most per class, classes, width]`, with not-a-number where a class has fewer."""
    place = places(labels, classes)
    most = int(place.max()) + 1 if len(place) else 1
    table = rows.new_full((most, classes, rows.shape[1]), float("nan"))
    table[place, labels] = rows
    return table


def robust_class_means(how: Averaging, rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Per class the robust average of the rows that came for it, `[classes, width]`; zeros for no row."""
    table = group_by_class(rows, labels, classes)
    if how.clips_updates:
        norms = table.norm(dim=2, keepdim=True)
        limit = _median(norms)
        table = torch.where(norms > limit, table * (limit / norms), table)
        return torch.nan_to_num(torch.nanmean(table, dim=0))
    if how.is_distance_based:
        weights = class_row_weights(how, rows, labels, classes)
        total = rows.new_zeros(classes, rows.shape[1])
        return total.index_add_(0, labels, weights[:, None].to(rows.dtype) * rows)
    return coordinatewise_average(how, table)


def class_row_weights(how: Averaging, rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return how much each row counts among those of its class, by krum or the geometric median."""
    table = group_by_class(rows.double(), labels, classes).transpose(0, 1)  # [classes, most per class, width]
    present = ~torch.isnan(table).any(dim=2) if rows.shape[1] else table.new_ones(table.shape[:2]).bool()
    table = torch.nan_to_num(table)
    squares = torch.cdist(table, table, compute_mode="donot_use_mm_for_euclid_dist").square()
    return robust_weights(how, squares, present)[labels, places(labels, classes)]


FAR = 3.0
Sent = Sequence[tuple[Tensor, Tensor]]
"""Rows and their labels, one pair for each answer."""


def screen_rows(how: Averaging, sent: Sent, classes: int) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Return what can be believed of rows and labels, and a mask for each answer of the rows that are left.

    Under `mean` that is everything, as it is; `norm-clip` leaves nothing out and shortens rows to the class's median.
    """
    everything = [torch.ones(len(labels), dtype=torch.bool, device=labels.device) for _, labels in sent]
    if how.rule == "mean" or not sum(len(labels) for _, labels in sent):
        return list(sent), everything
    rows, labels = (torch.cat(column) for column in zip(*sent, strict=True))
    if how.clips_updates:
        limit = _median_length(rows, labels, classes)[labels]
        return _split(_shorten_rows(rows, limit), labels, everything), everything
    keep = _believed(how, rows, labels, classes, [len(rows_sent) for _, rows_sent in sent])
    typical = rows[keep].norm(dim=1).median() if bool(keep.any()) else rows.new_zeros(())
    masks = list(torch.split(keep, [len(rows_sent) for _, rows_sent in sent]))
    return _split(_shorten_rows(rows, FAR * typical), labels, masks), masks


def _split(rows: Tensor, labels: Tensor, masks: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    sizes = [len(mask) for mask in masks]
    parts = zip(torch.split(rows, sizes), torch.split(labels, sizes), masks, strict=True)
    return [(part[mask], ids[mask]) for part, ids, mask in parts]


def _shorten_rows(rows: Tensor, limit: Tensor) -> Tensor:
    length = rows.norm(dim=1)
    return torch.where((length > limit)[:, None], rows * (limit / length.clamp(min=1e-30))[:, None], rows)


def _median_length(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the median length of each class's rows; of all rows where a class has fewer than three."""
    lengths = group_by_class(rows.norm(dim=1, keepdim=True), labels, classes)
    medians = coordinatewise_average(Averaging("median"), lengths)[:, 0]
    enough = torch.bincount(labels, minlength=classes) >= 3
    return torch.where(enough, medians, rows.norm(dim=1).median())


def _believed(how: Averaging, rows: Tensor, labels: Tensor, classes: int, sizes: Sequence[int]) -> Tensor:
    """Return a mask of the rows that are neither far from their class nor from a client that mostly is."""
    judged = (torch.bincount(labels, minlength=classes) >= 3)[labels]
    distances = (rows - robust_class_means(how, rows, labels, classes)[labels]).norm(dim=1)
    typical = coordinatewise_average(
        Averaging("median"), group_by_class(distances[:, None], labels, classes)
    )[:, 0][labels]
    outliers = judged & (
        distances > FAR * typical + 1e-6 * rows.norm(dim=1)
    )  # beyond rounding, where all sent the same
    keep: Tensor = ~outliers
    for own, own_far, seen in zip(
        *(torch.split(mask, list(sizes)) for mask in (keep, outliers, judged)), strict=True
    ):
        if bool(2 * own_far.sum() > seen.sum()):
            own.fill_(False)
    return keep


def screen_models(
    how: Averaging, old: Mapping[str, Tensor], parts: Sequence[Tensors]
) -> list[Tensors | None]:
    """Whole answers of one form: None for those that lie far from the others; under `norm-clip` changes shortened."""
    if how.rule == "mean":
        return list(parts)
    if how.clips_updates:
        return list(clip_changes(parts, old))
    flat = [torch.cat([(part[name] - old[name]).flatten() for name in old])[None] for part in parts]
    label = torch.zeros(1, dtype=torch.int64, device=flat[0].device)
    _, masks = screen_rows(how, [(row, label) for row in flat], 1)
    return [part if bool(mask.all()) else None for part, mask in zip(parts, masks, strict=True)]
