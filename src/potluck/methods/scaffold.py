"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates undo the drift of local training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch

from potluck.method import (
    Client,
    ClientInfo,
    Context,
    Like,
    Method,
    Need,
    PaperAccounting,
    Payload,
    Predictor,
    Range,
    Supports,
    Tensors,
    Update,
    kit,
    setting,
)


@dataclass(frozen=True)
class Start(Payload):
    """Server to client: weights w, the server's control variate c, and which of the client's jobs counted last."""

    weights: Annotated[Tensors, Like("model", subset=True)]
    control: Annotated[Tensors, Like("model", subset=True)]
    counted: Annotated[int, Range(-1)] = -1


@dataclass(frozen=True)
class Change(Payload):
    """Client to server: Δw and Δc; BatchNorm's statistics travel as they are."""

    weights: Annotated[Tensors, Like("model", subset=True)]
    control: Annotated[Tensors, Like("model", subset=True)]
    statistics: Annotated[Tensors, Like("model", subset=True)] = field(default_factory=dict)


@dataclass
class Variates:
    """Server state: w and c, both per group, and which job of each client counted last."""

    weights: kit.Groups
    control: kit.Groups
    counted: dict[str, int] = field(default_factory=dict)


@dataclass
class Scaffold(Method[Variates, Start, Change]):
    """Each local step adds c - c_k to the gradient; c_k is then the mean gradient that the client saw.

    An update that was late or rejected never reached c: the next message says so, and the client takes its c_k back.
    BatchNorm's statistics have no control variate.
    """

    name: ClassVar[str] = "scaffold"
    summary: ClassVar[str] = "FedAvg with control variates against client drift"
    supports: ClassVar[Supports] = Supports(
        robust="the changes of weights and control variates",
        max_share={"weight": "samples"},
        single_answers="it adds changes to weights and control variates apart",
    )

    server_lr: float = setting(1.0, "step η_g of the server along the mean change", gt=0)
    control: Literal["gradients", "displacement"] = setting(
        "gradients",
        "where c_k comes from: the mean of the gradients, or the distance gone (the paper's option II, which is no "
        "gradient with Adam or clipping)",
    )
    aggregate: kit.Sharing = setting("same_arch", "whose weights are averaged, as for fedavg")
    weight: kit.Weighting = setting(
        "uniform", "how clients count in the mean: all alike, or by training samples"
    )
    buffers: bool = setting(True, "average BatchNorm statistics as well")

    def init_server(self, ctx: Context) -> Variates:
        """w⁰: one common initialisation per group; c = 0."""
        weights = kit.initial_groups(ctx.task, self.aggregate, buffers=self.buffers)
        learned = kit.initial_groups(ctx.task, self.aggregate, buffers=False)
        return Variates(weights, kit.zeros_like_groups(learned))

    def broadcast(self, state: Variates, client: ClientInfo, ctx: Context) -> Start:
        """w and c, as far as the client's architecture has them."""
        weights = kit.tensors_for_client(state.weights, client, ctx.task)
        control = kit.tensors_for_client(state.control, client, ctx.task)
        return Start(weights, control, state.counted.get(client.name, -1))

    def client(self, me: Client, message: Start) -> Change:
        """w_k ← w_k - η(g - c_k + c) at each of K steps, then the new c_k."""
        kit.load_tensors(me.model, message.weights)
        zeros = {name: torch.zeros_like(tensor) for name, tensor in message.control.items()}
        control = self._control(me, message) or zeros
        correction = {name: message.control[name] - control[name] for name in control}
        seen = {name: tensor.clone() for name, tensor in zeros.items()}

        def correct() -> None:
            for name, parameter in me.model.named_parameters():
                if parameter.grad is not None:
                    seen[name] += parameter.grad
                    parameter.grad += correction[name]

        steps = me.fit(kit.cross_entropy_loss, adjust=correct).steps
        after = kit.tensors_of(me.model, buffers=self.buffers)
        change = {name: after[name] - message.weights[name] for name in control}
        new = control
        if steps and self.control == "gradients":
            new = {name: total / steps for name, total in seen.items()}
        elif steps:  # c_k⁺ = c_k - c + (w - w_k)/(K·η)
            scale = me.training.effective_steps(steps) * me.lr
            new = {name: -correction[name] - change[name] / scale for name in control}
        me.private["control"], me.private["before"] = new, {"job": me.job, "control": control}
        difference = {name: new[name] - control[name] for name in control}
        return Change(change, difference, kit.statistics_of(after))

    def _control(self, me: Client, message: Start) -> Tensors | None:
        """Return c_k as the server has it: without the last job's change where that update did not count."""
        before: dict[str, Any] | None = me.private.get("before")
        if before is not None and before["job"] != message.counted:
            earlier: Tensors = before["control"]
            return earlier
        last: Tensors | None = me.private.get("control")
        return last

    def server(self, state: Variates, updates: Sequence[Update[Change]], ctx: Context) -> Variates:
        """w ← w + η_g/m · ΣΔw and c ← c + 1/N · ΣΔc, where N counts all clients that own the tensor."""
        weights, control = {}, {}
        for key, (members, share) in kit.split_by_group(ctx, state.control, updates).items():
            changes, by = [update.payload.weights for update in members], self.weight
            moved = kit.mean_change(ctx, state.control[key], members, changes, by=by, share=share)
            old = kit.average(ctx, state.weights[key], members, _statistics, by=by, share=share)
            weights[key] = {
                name: tensor + self.server_lr * moved[name] if name in moved else tensor
                for name, tensor in old.items()
            }
            control[key] = _update_control(state.control, key, members, ctx)
        counted = {update.client.name: update.job for update in updates}
        return Variates(weights, control, {**state.counted, **counted})

    def predict(self, me: Client, message: Start | None) -> Predictor:
        """Return the trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.weights)

    def predict_server(self, state: Variates, ctx: Context) -> Predictor | None:
        """Return the shared weights, where all clients share one set."""
        return kit.global_predictor(state.weights, ctx)

    def requires(self) -> frozenset[Need]:
        """Return what has to be alike, which depends on the way of sharing."""
        return kit.SHARING_NEEDS[self.aggregate]

    def paper_accounting(self, down: Start, up: Change) -> PaperAccounting:
        """Count learned parameters and their control variates, in one direction (FedIN's Table 6)."""
        note = "BatchNorm statistics not counted (FedIN, Table 6)"
        sent = kit.count_parameters(up.weights) + kit.count_parameters(up.control)
        received = kit.count_parameters(down.weights) + kit.count_parameters(down.control)
        return PaperAccounting(sent, received, note)


def _statistics(payload: Start | Change) -> Tensors:
    return kit.statistics_of(payload.statistics if isinstance(payload, Change) else payload.weights)


def _update_control(
    control: kit.Groups, key: str, updates: Sequence[Update[Change]], ctx: Context
) -> Tensors:
    """Add every Δc to c once, at any time it arrives: c stays the mean of the clients' c_k."""
    result, changes = dict(control[key]), [change for _, change in kit.new_values(updates, "control")]
    for name, owners in _owners(control, key, ctx).items():
        parts = [change[name] for change in changes if name in change]
        if parts:
            result[name] = control[key][name] + kit.sum_changes(ctx, parts) / owners
    return result


def _owners(groups: kit.Groups, key: str, ctx: Context) -> Counter[str]:
    """Count the clients with training data in the whole group that have each parameter."""
    owners: Counter[str] = Counter()
    for architecture, clients in kit.architectures_in_group(groups, key, ctx.task).items():
        for name in ctx.task.architectures[architecture].parameters:
            owners[name] += clients
    return owners
