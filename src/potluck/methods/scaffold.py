"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates undo the drift of local training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from potluck.core.client import Client
from potluck.core.method import Method, Need, PaperAccounting, Predictor, Update
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Like
from potluck.core.sharing import (
    SHARING_NEEDS,
    Groups,
    Sharing,
    Weighting,
    average_groups,
    group_of,
    initial_groups,
    learned_numbers,
    slice_for,
    zero_groups,
)
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import cross_entropy_loss, load_tensors, robust_sum, tensors_of
from potluck.methods.fedavg import global_predictor


@dataclass(frozen=True)
class Start(Payload):
    """Server to client: weights w and the server's control variate c."""

    weights: Annotated[Tensors, Like("model", subset=True)]
    control: Annotated[Tensors, Like("model", subset=True)]


@dataclass(frozen=True)
class Change(Payload):
    """Client to server: Δw and Δc."""

    weights: Annotated[Tensors, Like("model", subset=True, changes=True)]
    control: Annotated[Tensors, Like("model", subset=True)]


@dataclass
class Variates:
    """Server state: w and c, both per group."""

    weights: Groups
    control: Groups


@dataclass
class Scaffold(Method[Variates, Start, Change]):
    """Each local step adds c - c_k to the gradient; c_k is then the mean gradient that the client saw.

    `control` takes that mean from the `gradients` themselves, or from the `displacement` of the weights (the paper's
    option II): the same with plain SGD, but only the former still is a gradient with Adam or clipping. `server_lr`
    is η_g. `weight` averages the changes of the weights uniformly (the paper) or by samples. BatchNorm's
    statistics have no control variate: they are averaged if `buffers`.
    """

    name: ClassVar[str] = "scaffold"
    summary: ClassVar[str] = "FedAvg with control variates against client drift"
    own_steps: ClassVar[bool] = True

    server_lr: float = 1.0
    control: Literal["gradients", "displacement"] = "gradients"
    aggregate: Sharing = "same_arch"
    weight: Weighting = "uniform"
    buffers: bool = True

    def requires(self) -> frozenset[Need]:
        """What has to be alike depends on the way of sharing."""
        return SHARING_NEEDS[self.aggregate]

    def init_server(self, ctx: Context) -> Variates:
        """One common initialisation per group, c = 0."""
        weights = initial_groups(ctx.task, self.aggregate, buffers=self.buffers)
        return Variates(weights, zero_groups(initial_groups(ctx.task, self.aggregate, buffers=False)))

    def broadcast(self, state: Variates, client: ClientInfo, ctx: Context) -> Start:
        """The client's slices of w and c."""
        return Start(slice_for(state.weights, client, ctx.task), slice_for(state.control, client, ctx.task))

    def client(self, me: Client, message: Start) -> Change:
        """w_k ← w_k - η(g - c_k + c) at each of K steps, then the new c_k."""
        load_tensors(me.model, message.weights)
        zeros = {name: torch.zeros_like(tensor) for name, tensor in message.control.items()}
        control: Tensors = me.private.get("control") or zeros
        correction = {name: message.control[name] - control[name] for name in control}
        seen = {name: tensor.clone() for name, tensor in zeros.items()}

        def correct() -> None:
            for name, parameter in me.model.named_parameters():
                if parameter.grad is not None:
                    seen[name] += parameter.grad
                    parameter.grad += correction[name]

        steps = me.fit(cross_entropy_loss, adjust=correct).steps
        after = tensors_of(me.model, buffers=self.buffers)
        change = {name: after[name] - message.weights[name] for name in message.weights}
        new = control
        if steps and self.control == "gradients":
            new = {name: total / steps for name, total in seen.items()}
        elif steps:  # c_k⁺ = c_k - c + (w - w_k)/(K·η)
            scale = me.training.effective_steps(steps) * me.lr
            new = {name: -correction[name] - change[name] / scale for name in control}
        me.private["control"] = new
        return Change(change, {name: new[name] - control[name] for name in control})

    def server(self, state: Variates, updates: Sequence[Update[Change]], ctx: Context) -> Variates:
        """w ← w + η_g/m · ΣΔw and c ← c + 1/N · ΣΔc, where N counts all clients that own the tensor."""
        changes = [update.payload.weights for update in updates]
        mean = average_groups(zero_groups(state.weights), updates, changes, self.weight)
        weights, control = {}, {}
        for key, old in state.control.items():
            weights[key] = {
                name: tensor + (self.server_lr if name in old else 1.0) * mean[key][name]
                for name, tensor in state.weights[key].items()
            }
            control[key] = dict(old)
            members = [update for update in updates if group_of(state.control, update.client) == key]
            for name, owners in _owners(state.control, key, ctx).items():
                parts = [u.payload.control[name] for u in members if name in u.payload.control]
                if parts:
                    control[key][name] = old[name] + robust_sum(parts) / owners
        return Variates(weights, control)

    def predict(self, me: Client, message: Start | None) -> Predictor:
        """The trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.weights)

    def predict_server(self, state: Variates, ctx: Context) -> Predictor | None:
        """The shared weights, where one set serves everybody."""
        return global_predictor(state.weights, ctx)

    def paper_accounting(self, down: Start, up: Change) -> PaperAccounting:
        """FedIN's Table 6 counts learned parameters and their control variates, in one direction."""
        note = "BatchNorm statistics not counted (FedIN, Table 6)"
        sent, got = (learned_numbers(one.weights) + learned_numbers(one.control) for one in (up, down))
        return PaperAccounting(sent, got, note)


def _owners(groups: Groups, key: str, ctx: Context) -> Counter[str]:
    """How many clients of the whole group have each parameter; those without data never take part."""
    owners: Counter[str] = Counter()
    able = [info for info in ctx.task.clients if info.samples > 0 and group_of(groups, info) == key]
    for architecture, clients in Counter(info.architecture for info in able).items():
        for name in ctx.task.architectures[architecture].parameters:
            owners[name] += clients
    return owners
