"""Whole-model weights shared among clients: all alike, within architecture groups, or tensor by tensor.

FedAvg and everything built on it keep their server weights this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch

from potluck.core.method import Need, Update
from potluck.core.model import is_statistic, travels
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Like
from potluck.core.task import Architecture, ClientInfo, Context, Task
from potluck.kit.averages import Part, Portion, Weighting, average, portion

Sharing = Literal["full", "same_arch", "layerwise"]
Groups = dict[str, Tensors]
"""Server weights per architecture group; one group called `all` where tensors are shared by name."""

ALL = "all"

SHARING_NEEDS: dict[Sharing, frozenset[Need]] = {
    "full": frozenset({Need.SAME_ARCHITECTURE}),
    "same_arch": frozenset({Need.LOGITS}),
    "layerwise": frozenset({Need.NESTED_DEPTH}),
}


@dataclass(frozen=True)
class Weights(Payload):
    """A model's tensors, as one architecture holds them."""

    tensors: Annotated[Tensors, Like("model", subset=True)]


def learned_numbers(tensors: Tensors) -> int:
    """How many numbers are learned, which is how papers count a model: BatchNorm's statistics are left out."""
    return sum(tensor.numel() for name, tensor in tensors.items() if not is_statistic(name))


def initial_groups(task: Task, sharing: Sharing, *, buffers: bool) -> Groups:
    """Common first weights: one set per architecture, or one for all names together."""
    if sharing == "same_arch":
        return {name: _travelling(a, buffers=buffers) for name, a in task.architectures.items()}
    union: Tensors = {}
    for architecture in sorted(task.architectures.values(), key=lambda a: -len(a.initial)):
        for name, tensor in _travelling(architecture, buffers=buffers).items():
            union.setdefault(name, tensor)
    return {ALL: union}


def _travelling(architecture: Architecture, *, buffers: bool) -> Tensors:
    return {
        name: tensor.clone()
        for name, tensor in architecture.initial.items()
        if name in architecture.parameters or (buffers and travels(name))
    }


def zero_groups(groups: Groups) -> Groups:
    """Zeros in the place of every tensor."""
    return {
        key: {name: torch.zeros_like(tensor) for name, tensor in group.items()}
        for key, group in groups.items()
    }


def group_of(groups: Groups, client: ClientInfo) -> str:
    """The name of the group that a client's weights belong to."""
    return ALL if ALL in groups else client.architecture


def architectures_of(groups: Groups, key: str, task: Task) -> dict[str, int]:
    """The architectures of a group, with how many clients of each have data; those without never take part."""
    return {name: count for name, count in task.able_of.items() if key == (ALL if ALL in groups else name)}


def slice_for(groups: Groups, client: ClientInfo, task: Task) -> Tensors:
    """The tensors of a client's own architecture, out of its group's."""
    group = groups[group_of(groups, client)]
    return {name: group[name] for name in task.architectures[client.architecture].initial if name in group}


def average_groups(
    ctx: Context, groups: Groups, updates: Sequence[Update[Any]], part: Part, by: Weighting
) -> Groups:
    """Per group and name, the mean over the participants that own it; what nobody owns keeps its value."""
    result: Groups = {}
    for key, (mine, of) in by_group(ctx, groups, updates).items():
        result[key] = average(ctx, groups[key], mine, part, by, of) if mine else groups[key]
    return result


def by_group(
    ctx: Context, groups: Groups, updates: Sequence[Update[Any]]
) -> dict[str, tuple[list[Update[Any]], Portion]]:
    """The answers of each group's clients, and what they are of the group's part of a round.

    A group is a federation of its own: two clients of ten answer with half of what theirs learns in a round, not
    with a tenth. A group of which nobody is fresh stays put, or the same old changes would move it at every step.
    """
    of, able = portion(ctx, updates), len(ctx.task.able)
    split: dict[str, tuple[list[Update[Any]], Portion]] = {}
    for key in groups:
        mine = [update for update in updates if group_of(groups, update.client) == key]
        if of.whole:
            split[key] = mine, of
            continue
        part = sum(architectures_of(groups, key, ctx.task).values()) / max(1, able)
        fresh = sum(update.fresh for update in mine)
        share = min(1.0, fresh / max(1.0, ctx.cohort * part))
        split[key] = (mine if fresh else []), replace(of, share=share, missing=of.missing * part)
    return split
