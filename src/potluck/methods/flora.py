"""FLoRA (Wang et al., NeurIPS 2024): stack adapters, so that their product is the mean of all products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from potluck.method import (
    Client,
    ClientInfo,
    ClientModel,
    Context,
    Like,
    Method,
    PaperAccounting,
    Payload,
    PayloadError,
    Predictor,
    Supports,
    Task,
    Tensors,
    Update,
    kit,
)

LEFT, RIGHT = ".left", ".right"


@dataclass(frozen=True)
class Stacks(Payload):
    """Down: the trained tensors that are no adapters, and the stacked B and A of each layer, of all rounds so far."""

    tensors: Annotated[Tensors, Like("model", subset=True)]
    stacks: Tensors

    def check(self, task: Task, client: ClientInfo) -> None:
        """Check that the stacks of each layer fit its weight and each other."""
        shapes = task.architectures[client.architecture].shapes
        layers = {name.rpartition(".")[0] for name in self.stacks}
        for layer in layers:
            left, right = self.stacks.get(layer + LEFT), self.stacks.get(layer + RIGHT)
            if left is None or right is None or layer + kit.LORA_A not in shapes:
                raise PayloadError(f"Stacks.stacks has no two factors for a layer {layer!r} with adapters.")
            sides = shapes[layer + kit.LORA_B][0], math.prod(shapes[layer + kit.LORA_A][1:])
            if left.dim() != 2 or right.dim() != 2 or (len(left), right.shape[1]) != sides:
                raise PayloadError(f"Stacks.stacks of {layer!r} must give a change of {sides[0]}×{sides[1]}.")
            if left.shape[1] != len(right):
                raise PayloadError(f"Stacks.stacks of {layer!r} have different ranks.")


@dataclass
class Stacked:
    """Server: averaged tensors of each group, and each group's stacks."""

    groups: kit.Groups
    stacks: kit.Groups


@dataclass
class FLoRA(Method[Stacked, Stacks, kit.Weights]):
    """Clients add the stacked product to their frozen weights and train new adapters in every round."""

    name: ClassVar[str] = "flora"
    summary: ClassVar[str] = "adapters of unequal rank: stacked, so that the mean of the products is exact"
    supports: ClassVar[Supports] = Supports(single_answers="it stacks the factors of each client")

    def init_server(self, ctx: Context) -> Stacked:
        """Start without stacks."""
        groups = kit.initial_adapters(ctx.task)
        plain = {
            name: {key: tensor for key, tensor in group.items() if not kit.is_factor(key)}
            for name, group in groups.items()
        }
        return Stacked(plain, {name: {} for name in groups})

    def broadcast(self, state: Stacked, client: ClientInfo, ctx: Context) -> Stacks:
        """Send all stacks: a client may have missed rounds, or be new."""
        group = kit.adapter_group(ctx.task, client)
        return Stacks(state.groups[group], state.stacks[group])

    def client(self, me: Client, message: Stacks) -> kit.Weights:
        """Add the stacked product to the frozen weights, train new adapters on top, send them."""
        kit.load_tensors(me.model, message.tensors)
        new_adapters(me)
        me.private["stacks"] = dict(message.stacks)
        with changed_weights(me.model, message.stacks):
            me.fit()
        return kit.Weights(kit.tensors_of(me.model))

    def server(self, state: Stacked, updates: Sequence[Update[kit.Weights]], ctx: Context) -> Stacked:
        """B = [p_1 B_1, p_2 B_2, …], A = [A_1; A_2; …] with p_k = n_k/n · scaling_k; other tensors by samples."""
        groups, stacks = dict(state.groups), dict(state.stacks)
        for group in kit.adapter_groups(ctx, state.groups, updates):
            groups[group.name] = group.others
            weights = [group.part * weight for weight in group.weights]
            stacks[group.name] = dict(state.stacks[group.name])
            for layer in kit.adapter_layers(group.updates[0].payload.tensors):
                left, right = stack(ctx, layer, group.updates, weights)
                add_stack(stacks[group.name], layer, left, right)
        return Stacked(groups, stacks)

    def predict(self, me: Client, message: Stacks | None) -> Predictor:
        """Return the trained model on its changed weights, or the model as just received, without own adapters."""
        stacks: Tensors = me.private.get("stacks", {}) if message is None else message.stacks
        layers = kit.adapter_layers(me.model.state_dict())
        if not layers:
            return me.model if message is None else me.predictor(message.tensors)
        tensors = {
            key: weight + stacked_change(stacks, layer, weight)
            for layer in layers
            for key, weight in [frozen_weight(me.model, layer)]
        }
        if message is not None:
            empty = {layer + kit.LORA_B: me.model.get_parameter(layer + kit.LORA_B) * 0 for layer in layers}
            tensors = {**tensors, **empty, **message.tensors}
        return me.predictor(tensors)

    def paper_accounting(self, down: Stacks, up: kit.Weights) -> PaperAccounting:
        """Count adapters upwards; downwards all stacks, where the paper sends those of the last round."""
        received = kit.count_parameters({**down.tensors, **down.stacks})
        return PaperAccounting(kit.count_parameters(up.tensors), received, "stacks of all rounds so far")


def stack(
    ctx: Context, layer: str, updates: Sequence[Update[kit.Weights]], weights: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return the stacked factors of one layer, `[outputs, Σ r_k]` and `[Σ r_k, inputs]`."""
    factors = [
        weight * kit.scaling_of(ctx.task, update.client, layer)
        for weight, update in zip(weights, updates, strict=True)
    ]
    left = torch.cat(
        [
            factor * update.payload.tensors[layer + kit.LORA_B].flatten(1)
            for factor, update in zip(factors, updates, strict=True)
        ],
        1,
    )
    return left, torch.cat([update.payload.tensors[layer + kit.LORA_A].flatten(1) for update in updates])


def add_stack(stacks: Tensors, layer: str, left: Tensor, right: Tensor) -> None:
    """Append factors to those of earlier rounds; where the change itself is smaller, keep it and an identity."""
    if layer + LEFT in stacks:
        left = torch.cat([stacks[layer + LEFT], left], 1)
        right = torch.cat([stacks[layer + RIGHT], right])
    if len(right) > min(len(left), right.shape[1]):
        change = left @ right
        identity = torch.eye(min(change.shape), dtype=change.dtype, device=change.device)
        left, right = (identity, change) if change.shape[0] <= change.shape[1] else (change, identity)
    stacks[layer + LEFT], stacks[layer + RIGHT] = left, right


def stacked_change(stacks: Tensors, layer: str, weight: Tensor) -> Tensor:
    """Return the product of a layer's stacks in the shape of its weight; zero where there are none."""
    if layer + LEFT not in stacks:
        return torch.zeros_like(weight)
    change: Tensor = stacks[layer + LEFT] @ stacks[layer + RIGHT]
    return change.view_as(weight)


def frozen_weight(model: ClientModel, layer: str) -> tuple[str, Tensor]:
    """Return name and value of the frozen weight under an adapter: of a layer, or of an attention's projection."""
    base = model.get_submodule(f"{layer}.base")
    name = "in_proj_weight" if hasattr(base, "in_proj_weight") else "weight"
    return f"{layer}.base.{name}", base.get_parameter(name).data


@contextmanager
def changed_weights(model: ClientModel, stacks: Tensors) -> Iterator[None]:
    """Change frozen weights inside the block; clients of one network share them, so these stay as they are."""
    frozen = {}
    for layer in kit.adapter_layers(model.state_dict()):
        name, weight = frozen_weight(model, layer)
        frozen[name] = weight
        model.get_parameter(name).data = weight + stacked_change(stacks, layer, weight)
    try:
        yield
    finally:
        for name, weight in frozen.items():
            model.get_parameter(name).data = weight


def new_adapters(me: Client) -> None:
    """Start new adapters: A uniform in ±1/√inputs, as a linear layer begins, B at zero."""
    for layer in kit.adapter_layers(me.model.state_dict()):
        a = me.model.get_parameter(layer + kit.LORA_A).data
        uniform = torch.rand(a.shape, generator=me.rng("adapters"), dtype=a.dtype).to(a.device)
        a.copy_((2 * uniform - 1) / math.sqrt(math.prod(a.shape[1:])))
        me.model.get_parameter(layer + kit.LORA_B).data.zero_()
