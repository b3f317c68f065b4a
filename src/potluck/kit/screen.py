"""Before a server trains on answers or stores them: who lies far from everybody else is left out, class by class.

A class is judged where three or more clients sent something of it. Its robust centre is that of the rule; a row that
lies more than `FAR` times as far from it as the class's median row is left out. A client most of whose judged rows are
left out is not believed on classes that nobody else can judge. What is left is at most `FAR` times as long as the
median row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from potluck.core.payload import Tensors
from potluck.core.task import Averaging
from potluck.kit.robust import by_class, centre, clip_changes, middle_rows

FAR = 3.0
Sent = Sequence[tuple[Tensor, Tensor]]
"""Rows and their labels, one pair for each answer."""


def screened(how: Averaging, sent: Sent, classes: int) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """What can be believed of rows and labels, and a mask for each answer of the rows that are left.

    Under `mean` that is everything, as it is; `norm-clip` leaves nothing out and shortens rows to the class's median.
    """
    everything = [torch.ones(len(labels), dtype=torch.bool, device=labels.device) for _, labels in sent]
    if how.rule == "mean" or not sum(len(labels) for _, labels in sent):
        return list(sent), everything
    rows, labels = (torch.cat(column) for column in zip(*sent, strict=True))
    if how.clips:
        limit = _median_length(rows, labels, classes)[labels]
        return _split(_shortened(rows, limit), labels, everything), everything
    keep = _believed(how, rows, labels, classes, [len(one) for _, one in sent])
    usual = rows[keep].norm(dim=1).median() if bool(keep.any()) else rows.new_zeros(())
    masks = list(torch.split(keep, [len(one) for _, one in sent]))
    return _split(_shortened(rows, FAR * usual), labels, masks), masks


def _split(rows: Tensor, labels: Tensor, masks: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    sizes = [len(mask) for mask in masks]
    parts = zip(torch.split(rows, sizes), torch.split(labels, sizes), masks, strict=True)
    return [(part[mask], ids[mask]) for part, ids, mask in parts]


def _shortened(rows: Tensor, limit: Tensor) -> Tensor:
    length = rows.norm(dim=1)
    return torch.where((length > limit)[:, None], rows * (limit / length.clamp(min=1e-30))[:, None], rows)


def _median_length(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The median length of each class's rows; of all rows where a class has fewer than three."""
    lengths = by_class(rows.norm(dim=1, keepdim=True), labels, classes)
    mine = centre(Averaging("median"), lengths)[:, 0]
    enough = torch.bincount(labels, minlength=classes) >= 3
    return torch.where(enough, mine, rows.norm(dim=1).median())


def _believed(how: Averaging, rows: Tensor, labels: Tensor, classes: int, sizes: Sequence[int]) -> Tensor:
    """A mask of the rows that are neither far from their class nor from a client that mostly is."""
    judged = (torch.bincount(labels, minlength=classes) >= 3)[labels]
    apart = (rows - middle_rows(how, rows, labels, classes)[labels]).norm(dim=1)
    usual = centre(Averaging("median"), by_class(apart[:, None], labels, classes))[:, 0][labels]
    far = judged & (apart > FAR * usual + 1e-6 * rows.norm(dim=1))  # beyond rounding, where all sent the same
    keep: Tensor = ~far
    for mine, his, seen in zip(*(torch.split(one, list(sizes)) for one in (keep, far, judged)), strict=True):
        if bool(2 * his.sum() > seen.sum()):
            mine.fill_(False)
    return keep


def trusted(how: Averaging, old: Mapping[str, Tensor], parts: Sequence[Tensors]) -> list[Tensors | None]:
    """Whole answers of one form: None for those that lie far from the others; under `norm-clip` changes shortened."""
    if how.rule == "mean":
        return list(parts)
    if how.clips:
        return list(clip_changes(parts, old))
    flat = [torch.cat([(part[name] - old[name]).flatten() for name in old])[None] for part in parts]
    label = torch.zeros(1, dtype=torch.int64, device=flat[0].device)
    _, masks = screened(how, [(row, label) for row in flat], 1)
    return [part if bool(mask.all()) else None for part, mask in zip(parts, masks, strict=True)]
