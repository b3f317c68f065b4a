"""Rules that go by how near answers lie to each other: krum (Blanchard et al. 2017) and the geometric median.

Both need nothing but the squared distances between answers: `[groups, answers, answers]`, and a mask of those that are
there. A group is a class, or the one group of all whole answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.core.payload import Tensors
from potluck.core.task import Averaging

ROUNDS = 100
"""Steps of Weiszfeld's iteration; among a hundred answers it moves no further than rounding long before."""


def expected(how: Averaging, sent: Tensor) -> Tensor:
    """How many of so many answers may come from attackers: rounded up, but fewer than half."""
    return torch.minimum((how.attackers * sent.double() - 1e-9).ceil().long(), (sent - 1).clamp(min=0) // 2)


def answer_weights(how: Averaging, squares: Tensor, here: Tensor) -> Tensor:
    """How much each answer counts; the weights of a group sum to one."""
    if how.rule == "krum":
        counts = krum(how, squares, here).double()
    else:
        counts = geometric_median(squares, here)
    return counts / counts.sum(dim=1, keepdim=True).clamp(min=1e-300)


def krum(how: Averaging, squares: Tensor, here: Tensor) -> Tensor:
    """Which answers are nearest to their neighbours: all but as many as may come from attackers (multi-krum)."""
    sent = here.sum(dim=1)
    liars = expected(how, sent)
    others = (
        here[:, None] & here[:, :, None] & ~torch.eye(here.shape[1], dtype=torch.bool, device=here.device)
    )
    nearest = squares.masked_fill(~others, float("inf")).sort(dim=2).values
    neighbours = (sent - liars - 2).clamp(min=1)
    rank = torch.arange(here.shape[1], device=here.device)
    counted = nearest.masked_fill((rank >= neighbours[:, None, None]) | nearest.isinf(), 0.0)
    scores = counted.sum(dim=2).masked_fill(~here, float("inf"))
    place = scores.argsort(dim=1, stable=True).argsort(dim=1)
    return here & (place < (sent - liars)[:, None])


def geometric_median(squares: Tensor, here: Tensor) -> Tensor:
    """Weights whose mean is the point with the smallest sum of distances to all answers.

    With weights w that sum to one, |x_i − Σ w_j x_j|² = Σ_j w_j d²_ij − ½ Σ_jk w_j w_k d²_jk.
    """
    there = here.double()
    weights = there / there.sum(dim=1, keepdim=True).clamp(min=1)
    # A point that lies on an answer would be at distance 0 from it; so near it does not matter any more.
    least = 1e-9 * squares.amax(dim=(1, 2)).sqrt()[:, None] + 1e-150
    for _ in range(ROUNDS):
        mixed = (squares @ weights[:, :, None])[:, :, 0]
        apart = (mixed - 0.5 * (weights * mixed).sum(dim=1, keepdim=True)).clamp(min=0).sqrt()
        closeness = there / torch.maximum(apart, least)
        weights = closeness / closeness.sum(dim=1, keepdim=True).clamp(min=1e-300)
    return weights


def part_weights(how: Averaging, parts: Sequence[Tensors]) -> list[float]:
    """How much each whole answer counts. Answers are compared by the mean square over the names that both have."""
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
    # Answers without a common name say nothing of each other: they are as far apart as usual.
    known = (sizes > 0) & ~torch.eye(count, dtype=torch.bool)
    apart = squares / sizes.clamp(min=1)
    usual = apart[known].median() if known.any() else torch.zeros(())
    apart = torch.where(known | torch.eye(count, dtype=torch.bool), apart, usual)
    weights = answer_weights(how, apart[None], torch.ones(1, count, dtype=torch.bool))[0]
    found: list[float] = weights.tolist()
    return found
