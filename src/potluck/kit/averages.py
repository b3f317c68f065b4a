"""Averages of what clients sent: by samples or plain, of a whole cohort or of answers as they come.

A whole cohort, all fresh, is averaged as papers write it. Where the server steps at fewer answers, or at stale ones,
one answer must not become the state. Then every client counts by its change: what it answered minus what it had been
sent. The state moves along the mean change of a cohort's latest answers, at each step by the part of a round that the
fresh answers are. So fast clients do not outvote slow ones, an old answer does not pull the state back to old weights,
and a stale answer counts by its weight. (FedBuff keeps changes in a buffer, MIFA the latest of every client.)

Every function obeys the rule of `ctx.averaging`, so a method that calls none of them takes no average that
`schedule.robust` could act on, and says so in `Method.averages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from potluck.core.method import Update
from potluck.core.model import is_statistic
from potluck.core.payload import Payload, Tensors
from potluck.core.task import Averaging, Context
from potluck.kit.nearness import part_weights
from potluck.kit.robust import centre, clip_changes
from potluck.kit.shares import capped

Up = TypeVar("Up", bound=Payload)
Weighting = Literal["samples", "uniform"]
Part = Callable[[Any], Tensors]
"""The tensors to average, out of an answer; for changes the same is asked of the message that it answers."""


def by_client(updates: Iterable[Update[Up]]) -> list[Update[Up]]:
    """Updates in the order of client ids, so that sums do not depend on who finished first."""
    return sorted(updates, key=lambda update: update.client.index)


@dataclass(frozen=True)
class Portion:
    """How much of a round the answers of a server step are.

    `whole`: the server waits for rounds, or a whole cohort came and nothing of it is stale. Otherwise `share` is the
    part of a cohort that is fresh, and `missing` how many answers there would have to be besides.
    """

    whole: bool = True
    share: float = 1.0
    missing: float = 0.0


def portion(ctx: Context, updates: Sequence[Update[Any]]) -> Portion:
    """What these answers are of a round."""
    fresh = [update for update in updates if update.fresh]
    if not ctx.cohort or (
        len(fresh) >= ctx.cohort and all(one.weight == 1 and not one.staleness for one in fresh)
    ):
        return Portion()
    return Portion(False, min(1.0, len(fresh) / ctx.cohort), max(0, ctx.cohort - len(updates)))


def sample_weights(updates: Sequence[Update[Any]]) -> list[float]:
    """n_k over the sum of the participants' n (discounted where stale), summing to one."""
    counts = [update.client.samples * update.weight for update in updates]
    total = sum(counts)
    return [count / total for count in counts]


def sum_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Sum in the given order, without changing any of them."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def average(
    ctx: Context,
    old: Mapping[str, Tensor],
    updates: Sequence[Update[Any]],
    part: Part,
    by: Weighting,
    of: Portion | None = None,
) -> Tensors:
    """Per tensor name, the mean over the updates whose part owns it; a name nobody owns keeps its old value.

    Of a whole cohort it is the mean itself, otherwise the old value moved along the mean change. `of` says what the
    answers are of a round where they are only some of a step's.
    """
    of = of or portion(ctx, updates)
    parts = [part(update.payload) for update in updates]
    if of.whole:
        return average_parts(ctx.averaging, old, parts, _weights(updates, by))
    # A variance cannot be moved along changes, which may carry it below zero: statistics are averaged themselves.
    changes, statistics = [], []
    for update, mine in zip(updates, parts, strict=True):
        base = {**old, **({} if update.sent is None else part(update.sent))}
        known = [name for name in mine if name in old]
        changes.append({name: mine[name] - base[name] for name in known if not is_statistic(name)})
        statistics.append({name: mine[name] - old[name] for name in known if is_statistic(name)})
    moved = mean_change(ctx, old, updates, changes, by, replace(of, missing=0))
    mixed = mean_change(ctx, old, updates, statistics, by, replace(of, share=1.0))
    return {name: tensor + moved[name] + mixed[name] for name, tensor in old.items()}


def mean_change(
    ctx: Context,
    like: Mapping[str, Tensor],
    updates: Sequence[Update[Any]],
    changes: Sequence[Tensors],
    by: Weighting,
    of: Portion | None = None,
) -> Tensors:
    """How far to go: the mean change, and of it the part of a round that the fresh answers are.

    What is missing to a cohort, and what stale answers count less, is a change of zero. Names of `like` that nobody
    changed do not move.
    """
    of = of or portion(ctx, updates)
    result = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
    if of.whole:
        return average_parts(ctx.averaging, result, changes, _weights(updates, by))
    if ctx.averaging.clips:
        changes = clip_changes(changes, result)
    near = part_weights(ctx.averaging, changes) if ctx.averaging.weighs else []
    sizes = [float(update.client.samples) if by == "samples" else 1.0 for update in updates]
    missing = of.missing * (ctx.task.mean_samples if by == "samples" else 1.0)
    for name in result:
        owners = [number for number, change in enumerate(changes) if name in change]
        mine = capped([sizes[number] for number in owners], ctx.averaging.max_share, missing)
        total = sum(mine) + missing
        counted = [
            of.share * size * updates[number].weight / total
            for size, number in zip(mine, owners, strict=True)
        ]
        if owners and ctx.averaging.ranks:
            middle = centre(ctx.averaging, torch.stack([changes[number][name] for number in owners]))
            result[name] = sum(counted) * middle
        elif owners and near:
            result[name] = sum(counted) * _weighed(name, result[name], changes, owners, near, 1.0)
        elif owners:
            terms = [one * changes[number][name] for one, number in zip(counted, owners, strict=True)]
            result[name] = sum_tensors(terms)
    return result


def _weights(updates: Sequence[Update[Any]], by: Weighting) -> list[float] | None:
    if by == "samples":
        return sample_weights(updates)
    fresh = all(update.weight == 1 for update in updates)
    return None if fresh else [update.weight for update in updates]


def sum_changes(how: Averaging, changes: Sequence[Tensor]) -> Tensor:
    """The sum of changes, or as many times their robust average as there are changes."""
    if how.rule == "mean":
        return sum_tensors(changes)
    nothing = {"change": torch.zeros_like(changes[0])}
    return len(changes) * average_parts(how, nothing, [{"change": change} for change in changes])["change"]


def average_parts(
    how: Averaging,
    old: Mapping[str, Tensor],
    parts: Sequence[Tensors],
    weights: Sequence[float] | None = None,
) -> Tensors:
    """The mean of a whole cohort with weights given; without any it is the plain mean, computed as sum over count."""
    result = dict(old)
    if how.clips:
        parts = clip_changes(parts, old)
    if how.weighs and parts:
        weights = part_weights(how, parts)
    for name in old:
        owners = [number for number, part in enumerate(parts) if name in part]
        if owners and how.ranks:
            result[name] = centre(how, torch.stack([parts[number][name] for number in owners]))
        elif owners and weights is None:
            result[name] = sum_tensors([parts[number][name] for number in owners]) / len(owners)
        elif owners and weights is not None:
            result[name] = _weighed(name, old[name], parts, owners, weights, how.max_share)
    return result


def _weighed(
    name: str,
    old: Tensor,
    parts: Sequence[Tensors],
    owners: Sequence[int],
    weights: Sequence[float],
    share: float,
) -> Tensor:
    """The mean over those who own a tensor, by weights; the old value where none of them counts."""
    mine = capped([weights[number] for number in owners], share)
    total = sum(mine)
    if not total:
        return old
    result = (mine[0] / total) * parts[owners[0]][name].detach()
    product = torch.empty_like(result)  # one for all: a model for every client would not stay in the cache
    for weight, number in zip(mine[1:], owners[1:], strict=True):
        result += torch.mul(parts[number][name].detach(), weight / total, out=product)
    return result
