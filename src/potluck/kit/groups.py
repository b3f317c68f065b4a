"""Whole-model weights on the server: one set for all clients, one per architecture, or shared tensor by tensor.

FedAvg and the methods built on it keep their weights this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch.func import functional_call

from potluck.core.method import Predictor, Update
from potluck.core.model import is_statistic, is_transferable
from potluck.core.needs import Need
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Like
from potluck.core.task import Architecture, ClientInfo, Context, Task
from potluck.kit.averages import RoundShare, SelectTensors, Weighting, average, round_share

Sharing = Literal["full", "same_arch", "layerwise"]
Groups = dict[str, Tensors]
"""Server weights per architecture; a single group `all` where tensors are shared by name."""

ALL = "all"

SHARING_NEEDS: dict[Sharing, frozenset[Need]] = {
    "full": frozenset({Need.SAME_ARCHITECTURE}),
    "same_arch": frozenset({Need.LOGITS}),
    "layerwise": frozenset({Need.NESTED_DEPTH}),
}


@dataclass(frozen=True)
class Weights(Payload):
    """A model's tensors, as one architecture has them."""

    tensors: Annotated[Tensors, Like("model", subset=True)]


def count_parameters(tensors: Tensors) -> int:
    """Count the learned numbers, as papers count a model: without BatchNorm's statistics."""
    return sum(tensor.numel() for name, tensor in tensors.items() if not is_statistic(name))


def statistics_of(tensors: Tensors) -> Tensors:
    """Return BatchNorm's running statistics among these tensors."""
    return {name: tensor for name, tensor in tensors.items() if is_statistic(name)}


def initial_groups(task: Task, sharing: Sharing, *, buffers: bool) -> Groups:
    """Return common first weights: one set per architecture, or one for all names together."""
    if sharing == "same_arch":
        return {name: _shared_tensors(a, buffers=buffers) for name, a in task.architectures.items()}
    union: Tensors = {}
    for architecture in sorted(task.architectures.values(), key=lambda a: -len(a.initial)):
        for name, tensor in _shared_tensors(architecture, buffers=buffers).items():
            union.setdefault(name, tensor)
    return {ALL: union}


def _shared_tensors(architecture: Architecture, *, buffers: bool) -> Tensors:
    return {
        name: tensor.clone()
        for name, tensor in architecture.initial.items()
        if name in architecture.parameters or (buffers and is_transferable(name))
    }


def zeros_like_groups(groups: Groups) -> Groups:
    """Return zeros in the place of every tensor."""
    return {
        key: {name: torch.zeros_like(tensor) for name, tensor in group.items()}
        for key, group in groups.items()
    }


def group_of(groups: Groups, client: ClientInfo) -> str:
    """Return the name of the group that a client's weights belong to."""
    return ALL if ALL in groups else client.architecture


def architectures_in_group(groups: Groups, key: str, task: Task) -> dict[str, int]:
    """Return the architectures of a group, each with the number of its clients that have training data."""
    return {
        name: count
        for name, count in task.eligible_per_architecture.items()
        if key == (ALL if ALL in groups else name)
    }


def tensors_for_client(groups: Groups, client: ClientInfo, task: Task) -> Tensors:
    """Return the tensors of a client's own architecture, out of its group's."""
    group = groups[group_of(groups, client)]
    return {name: group[name] for name in task.architectures[client.architecture].initial if name in group}


def average_groups(
    ctx: Context, groups: Groups, updates: Sequence[Update[Any]], select: SelectTensors, *, by: Weighting
) -> Groups:
    """Return, per group and name, the mean over the updates that have it; a name that no update has keeps its value."""
    result: Groups = {}
    for key, (members, share) in split_by_group(ctx, groups, updates).items():
        old = groups[key]
        result[key] = average(ctx, old, members, select, by=by, share=share) if members else old
    return result


def split_by_group(
    ctx: Context, groups: Groups, updates: Sequence[Update[Any]]
) -> dict[str, tuple[list[Update[Any]], RoundShare]]:
    """Return the updates of each group's clients, and how much of the group's part of a round they are.

    A group is a federation of its own: two clients of a group of four make half of its round, in whatever population.
    A group without a fresh update gets none, or the same old changes would move it at every step.
    """
    share, eligible = round_share(ctx, updates), len(ctx.task.eligible)
    split: dict[str, tuple[list[Update[Any]], RoundShare]] = {}
    for key in groups:
        members = [update for update in updates if group_of(groups, update.client) == key]
        if share.whole:
            split[key] = members, share
            continue
        part = sum(architectures_in_group(groups, key, ctx.task).values()) / max(1, eligible)
        fresh = sum(update.fresh for update in members)
        reached = min(1.0, fresh / max(1.0, ctx.cohort * part))
        split[key] = (
            (members if fresh else []),
            replace(share, share=reached, missing=share.missing * part),
        )
    return split


def global_predictor(groups: Groups, ctx: Context) -> Predictor | None:
    """Return the server's weights as a model, if they form a single one that the server can build."""
    keys = list(groups)
    largest = max(ctx.task.architectures.values(), key=lambda a: len(a.initial))
    if len(keys) > 1 or (keys != [ALL] and len(ctx.task.architectures) > 1) or largest.build is None:
        return None
    model = largest.build().to(device=ctx.task.device, dtype=ctx.task.dtype).eval()
    weights = {name: tensor for name, tensor in groups[keys[0]].items() if name in largest.initial}
    return lambda x: functional_call(model, weights, (x,))
