"""Low-rank adapters of unequal rank on the server: clients that share a network, products B A, truncation, padding.

Layer `NAME` of an adapted network has `NAME.lora_a.weight` `[rank, …]` and `NAME.lora_b.weight` `[outputs, rank, …]`
and changes the layer's weight by its scaling times B A (`potluck.models.lora`). All other trained tensors, such as the
head, are averaged as they are. Networks without adapters have none of the former: then this is plain averaging.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from potluck.core.method import Update
from potluck.core.model import is_transferable
from potluck.core.payload import Tensors
from potluck.core.task import Architecture, ClientInfo, Context, Task
from potluck.core.trained import model_name
from potluck.kit.averages import RoundShare, average, round_share, sample_weights
from potluck.kit.groups import Groups

LORA_A = ".lora_a.weight"
LORA_B = ".lora_b.weight"
LORA_SCALING = ".lora_scaling"
"""Endings of the names of an adapter's tensors."""


def adapter_layers(tensors: Mapping[str, Any]) -> list[str]:
    """Return the names of the layers that have adapters."""
    return [name.removesuffix(LORA_A) for name in tensors if name.endswith(LORA_A)]


def is_factor(name: str) -> bool:
    """Return whether a tensor belongs to an adapter."""
    return name.endswith((LORA_A, LORA_B))


def adapter_group(task: Task, client: ClientInfo) -> str:
    """Return the group whose clients share one network: same model, same tensors but for the ranks of adapters."""
    own = _form(task.architectures[client.architecture])
    return next(name for name, architecture in task.architectures.items() if _form(architecture) == own)


def _form(architecture: Architecture) -> tuple[object, ...]:
    """Return what is alike for two architectures that differ in rank alone."""
    shapes = {name: shape for name, shape in architecture.shapes.items() if is_transferable(name)}
    if not adapter_layers(shapes):
        return (architecture.name,)
    plain = {
        name: shape[1:]
        if name.endswith(LORA_A)
        else (shape[0], *shape[2:])
        if name.endswith(LORA_B)
        else shape
        for name, shape in shapes.items()
    }
    return model_name(architecture.name), *sorted(plain.items())


def initial_adapters(task: Task) -> Groups:
    """Return first tensors of each group, from its architecture with the largest adapters."""
    groups: Groups = {}
    for info in task.first_client_of.values():
        architecture, group = task.architectures[info.architecture], adapter_group(task, info)
        first = {
            name: architecture.initial[name].clone() for name in architecture.shapes if is_transferable(name)
        }
        if group not in groups or _size(first) > _size(groups[group]):
            groups[group] = first
    return groups


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() for name, tensor in tensors.items() if is_factor(name))


def scaling_of(task: Task, client: ClientInfo, layer: str) -> float:
    """Return the factor of a client's B A in a layer: alpha / rank, or 1."""
    return float(task.architectures[client.architecture].initial[layer + LORA_SCALING])


def adapter_product(tensors: Mapping[str, Tensor], layer: str) -> Tensor:
    """Return B A of a layer, `[outputs, all inputs]`, without its scaling."""
    product: Tensor = tensors[layer + LORA_B].flatten(1) @ tensors[layer + LORA_A].flatten(1)
    return product


def fit_rank(tensors: Tensors, architecture: Architecture) -> Tensors:
    """Return a group's tensors with each adapter cut, or padded with zeros, to an architecture's rank."""
    return {
        name: _resize(tensor, architecture.shapes[name], 0 if name.endswith(LORA_A) else 1)
        if is_factor(name)
        else tensor
        for name, tensor in tensors.items()
    }


def pad_rank(tensors: Mapping[str, Tensor], like: Tensors) -> Tensors:
    """Return adapters padded with zeros to the ranks of `like`."""
    return {
        name: _resize(tensor, tuple(like[name].shape), 0 if name.endswith(LORA_A) else 1)
        for name, tensor in tensors.items()
        if is_factor(name)
    }


def _resize(tensor: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    rank = shape[axis]
    tensor = tensor.narrow(axis, 0, min(rank, tensor.shape[axis]))
    if tensor.shape[axis] == rank:
        return tensor.clone()
    zeros = tensor.new_zeros(tuple(shape))
    zeros.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
    return zeros


@dataclass(frozen=True)
class AdapterGroup:
    """A server step on the clients of one network: their updates, the state before, and the share of a round they are.

    `others` is the mean over clients, by samples, of all tensors that are no adapters.
    """

    name: str
    updates: Sequence[Update[Any]]
    old: Tensors
    others: Tensors
    share: RoundShare

    @property
    def weights(self) -> list[float]:
        """Return what each client counts by its samples."""
        return sample_weights(self.updates)

    @property
    def part(self) -> float:
        """Return the part of a round that these updates are, 1 for a whole one."""
        return self.share.share

    def blend(self, old: Tensor, mean: Tensor) -> Tensor:
        """Return the mean of a whole round; of a part of one, the old value moved by that part towards the mean."""
        return mean if self.share.whole else old + self.share.share * (mean - old)


def adapter_groups(ctx: Context, state: Groups, updates: Sequence[Update[Any]]) -> Iterator[AdapterGroup]:
    """Yield the groups of a server step, each with its clients' updates in order."""
    share, by_group = round_share(ctx, updates), dict[str, list[Update[Any]]]()
    for update in updates:
        by_group.setdefault(adapter_group(ctx.task, update.client), []).append(update)
    for name, members in by_group.items():
        plain = {key: tensor for key, tensor in state[name].items() if not is_factor(key)}
        other_tensors = average(ctx, plain, members, _others, by="samples", share=share)
        yield AdapterGroup(name, members, state[name], other_tensors, share)


def _others(payload: Any) -> Tensors:
    """Return the tensors of an update that are no adapters."""
    return {name: tensor for name, tensor in payload.tensors.items() if not is_factor(name)}


def split_product(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return factors B `[outputs, rank]` and A `[rank, inputs]` of the best approximation of a product."""
    left, sizes, right = torch.linalg.svd(product, full_matrices=False)
    missing = rank - len(sizes)
    left, right = left[:, :rank] * sizes[:rank], right[:rank]
    if missing > 0:
        left = torch.cat([left, left.new_zeros(len(left), missing)], 1)
        right = torch.cat([right, right.new_zeros(missing, right.shape[1])])
    return left, right
