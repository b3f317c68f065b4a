"""Averages of updates: weighted, plain or robust (`schedule.robust`), of a whole round or of a part of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from potluck.core.method import Update
from potluck.core.model import is_statistic
from potluck.core.payload import Payload, Tensors
from potluck.core.random import add_up
from potluck.core.task import Averaging, ClientInfo, Context
from potluck.kit.robust import clip_changes, coordinatewise_average, screen_models, update_weights

Up = TypeVar("Up", bound=Payload)
Weighting = Literal["samples", "uniform"]
SelectTensors = str | Callable[[Any], Tensors]
"""The tensors of a payload to average: the name of its field, or a function of it."""


# -- whole rounds and parts of them -------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundShare:
    """How much of a round the updates of a server step are.

    `whole`: the server waits for rounds, or a whole cohort came and nothing of it is stale. Otherwise `share` is the
    fraction of a cohort that is fresh, and `missing` how many updates a cohort would have besides.
    """

    whole: bool = True
    share: float = 1.0
    missing: float = 0.0


WHOLE_ROUND = RoundShare()


def round_share(ctx: Context, updates: Sequence[Update[Any]]) -> RoundShare:
    """Return how much of a round these updates are."""
    fresh = [update for update in updates if update.fresh]
    if not ctx.cohort or (
        len(fresh) >= ctx.cohort and all(update.weight == 1 and not update.staleness for update in fresh)
    ):
        return WHOLE_ROUND
    return RoundShare(False, min(1.0, len(fresh) / ctx.cohort), max(0, ctx.cohort - len(updates)))


def server_steps(ctx: Context, updates: Sequence[Update[Any]], steps: int) -> int:
    """Return how many of a round's `steps` on the server to take: all, or as large a part as the updates are of it."""
    return math.ceil(steps * round_share(ctx, updates).share)


def new_values(updates: Sequence[Update[Any]], *fields: str) -> list[tuple[ClientInfo, *tuple[Any, ...]]]:
    """Return (client, value of each field) of every update that just arrived and has a value in all of them."""
    rows = [(u.client, *(getattr(u.payload, field) for field in fields)) for u in updates if u.fresh]
    return [row for row in rows if all(value is not None for value in row)]


# -- weights ------------------------------------------------------------------------------------------------


def sample_weights(updates: Sequence[Update[Any]]) -> list[float]:
    """Return n_k over the sum of the participants' n (discounted where stale), summing to one."""
    counts = [update.client.samples * update.weight for update in updates]
    total = add_up(counts)
    return [count / total for count in counts]


def cap_weights(weights: Sequence[float], share: float, rest: float = 0.0) -> list[float]:
    """Lower the largest weights until none is more than `share` of the sum of all weights and `rest`.

    Smaller ones stay. Where there are too few for such a bound (two cannot both weigh less than half), all get the
    smallest weight.
    """
    if share >= 1:
        return list(weights)
    order = sorted(range(len(weights)), key=lambda number: -weights[number])
    for large in range(len(weights) + 1):
        if large * share >= 1:
            break
        small = add_up(weights[number] for number in order[large:]) + rest
        bound = share * small / (1 - large * share)  # so that bound = share · (large · bound + small)
        if small and (large == len(weights) or weights[order[large]] <= bound):
            return [min(weight, bound) for weight in weights]
    return [min(weights)] * len(weights) if weights else []


def cap_counts(sent: Sequence[tuple[Tensor, Tensor]], counts: Sequence[Tensor], share: float) -> list[Tensor]:
    """Apply `cap_weights` class by class to the counts of each sender's (vectors, labels)."""
    result = [count.to(vectors.dtype) for (vectors, _), count in zip(sent, counts, strict=True)]
    for label in sorted({*torch.cat([labels for _, labels in sent]).tolist()}):
        places = [
            (sender, row)
            for sender, (_, labels) in enumerate(sent)
            for row in (labels == label).nonzero()[:, 0].tolist()
        ]
        capped = cap_weights([float(result[sender][row]) for sender, row in places], share)
        for (sender, row), weight in zip(places, capped, strict=True):
            result[sender][row] = weight
    return result


def screened_tensors(
    ctx: Context, old: Mapping[str, Tensor], updates: Sequence[Update[Any]], field: str
) -> list[Tensors | None]:
    """Return each update's tensors, None where `schedule.robust` rejects them as too far from the others'.

    All updates must have the names of `old`. Under `norm-clip` none is rejected and long changes are shortened.
    """
    return screen_models(ctx.averaging, old, [getattr(update.payload, field) for update in updates])


# -- averages -----------------------------------------------------------------------------------------------


def average(
    ctx: Context,
    old: Mapping[str, Tensor],
    updates: Sequence[Update[Any]],
    select: SelectTensors,
    *,
    by: Weighting,
    share: RoundShare | None = None,
) -> Tensors:
    """Return, per tensor name, the mean over the updates that have it; a name that no update has keeps its old value.

    A whole round gives the mean itself, a part of one moves the old value along the mean change since each update's
    message. `share` is given where the updates are only some of a server step's.
    """
    share = share or round_share(ctx, updates)
    take = attrgetter(select) if isinstance(select, str) else select
    parts: list[Tensors] = [take(update.payload) for update in updates]
    if share.whole:
        return average_tensors(ctx.averaging, old, parts, _weights(updates, by))
    # A variance cannot be moved along changes, which may carry it below zero: statistics are averaged themselves.
    changes, statistics = [], []
    for update, part in zip(updates, parts, strict=True):
        base = {**old, **({} if update.sent is None else take(update.sent))}
        names = [name for name in part if name in old]
        changes.append({name: part[name] - base[name] for name in names if not is_statistic(name)})
        statistics.append({name: part[name] - old[name] for name in names if is_statistic(name)})
    moved = mean_change(ctx, old, updates, changes, by=by, share=replace(share, missing=0))
    mixed = mean_change(ctx, old, updates, statistics, by=by, share=replace(share, share=1.0))
    return {name: tensor + moved[name] + mixed[name] for name, tensor in old.items()}


def mean_change(
    ctx: Context,
    like: Mapping[str, Tensor],
    updates: Sequence[Update[Any]],
    changes: Sequence[Tensors],
    *,
    by: Weighting,
    share: RoundShare | None = None,
) -> Tensors:
    """Return the mean of one change per update, times the part of a round that the fresh updates are.

    What is missing to a cohort, and what stale updates count less, is a change of zero. Names of `like` that no change
    has do not move.
    """
    share, averaging = share or round_share(ctx, updates), ctx.averaging
    result = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
    if share.whole:
        return average_tensors(averaging, result, changes, _weights(updates, by))
    if averaging.clips_updates:
        changes = clip_changes(changes, result)
    robust = update_weights(averaging, changes) if averaging.is_distance_based else []
    sizes = [float(update.client.samples) if by == "samples" else 1.0 for update in updates]
    missing = share.missing * (ctx.task.mean_client_samples if by == "samples" else 1.0)
    for name in result:
        owners = [number for number, change in enumerate(changes) if name in change]
        capped = cap_weights([sizes[number] for number in owners], averaging.max_share, missing)
        total = add_up(capped) + missing
        weights = [
            share.share * size * updates[number].weight / total
            for size, number in zip(capped, owners, strict=True)
        ]
        if owners and averaging.is_coordinatewise:
            stack = torch.stack([changes[number][name] for number in owners])
            result[name] = add_up(weights) * coordinatewise_average(averaging, stack)
        elif owners and robust:
            result[name] = add_up(weights) * _weighted_mean(name, result[name], changes, owners, robust, 1.0)
        elif owners:
            terms = [weight * changes[number][name] for weight, number in zip(weights, owners, strict=True)]
            result[name] = sum_tensors(terms)
    return result


def average_tensors(
    how: Averaging,
    old: Mapping[str, Tensor],
    parts: Sequence[Tensors],
    weights: Sequence[float] | None = None,
) -> Tensors:
    """Return the mean per name with the given weights; without any the plain mean, computed as sum over count."""
    result = dict(old)
    if how.clips_updates:
        parts = clip_changes(parts, old)
    if how.is_distance_based and parts:
        weights = update_weights(how, parts)
    for name in old:
        owners = [number for number, part in enumerate(parts) if name in part]
        if owners and how.is_coordinatewise:
            stack = torch.stack([parts[number][name] for number in owners])
            result[name] = coordinatewise_average(how, stack)
        elif owners and weights is None:
            result[name] = sum_tensors([parts[number][name] for number in owners]) / len(owners)
        elif owners and weights is not None:
            result[name] = _weighted_mean(name, old[name], parts, owners, weights, how.max_share)
    return result


def sum_changes(ctx: Context, changes: Sequence[Tensor]) -> Tensor:
    """Return the sum of changes, or their robust average times their number."""
    if ctx.averaging.rule == "mean":
        return sum_tensors(changes)
    zero = {"change": torch.zeros_like(changes[0])}
    parts = [{"change": change} for change in changes]
    return len(changes) * average_tensors(ctx.averaging, zero, parts)["change"]


def sum_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Sum in the given order, without changing any of them."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def _weights(updates: Sequence[Update[Any]], by: Weighting) -> list[float] | None:
    if by == "samples":
        return sample_weights(updates)
    undiscounted = all(update.weight == 1 for update in updates)
    return None if undiscounted else [update.weight for update in updates]


def _weighted_mean(
    name: str,
    old: Tensor,
    parts: Sequence[Tensors],
    owners: Sequence[int],
    weights: Sequence[float],
    max_share: float,
) -> Tensor:
    """Average one tensor over its owners; the old value where all weights are zero."""
    capped = cap_weights([weights[number] for number in owners], max_share)
    total = add_up(capped)
    if not total:
        return old
    result = (capped[0] / total) * parts[owners[0]][name].detach()
    product = torch.empty_like(
        result
    )  # one buffer for all: a model for every client would not stay in the cache
    for weight, number in zip(capped[1:], owners[1:], strict=True):
        result += torch.mul(parts[number][name].detach(), weight / total, out=product)
    return result
