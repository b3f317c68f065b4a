"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates undo the drift of local training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch

from potluck.core import (
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
    Tensors,
    Update,
    cross_entropy_loss,
    load_tensors,
    setting,
    tensors_of,
)
from potluck.kit import (
    SHARING_NEEDS,
    Groups,
    Sharing,
    Weighting,
    architectures_of,
    average,
    by_group,
    initial_groups,
    is_statistic,
    learned_numbers,
    mean_change,
    slice_for,
    sum_changes,
    zero_groups,
)
from potluck.methods.fedavg import global_predictor


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

    weights: Groups
    control: Groups
    counted: dict[str, int] = field(default_factory=dict)


@dataclass
class Scaffold(Method[Variates, Start, Change]):
    """Each local step adds c - c_k to the gradient; c_k is then the mean gradient that the client saw.

    An answer that was late or refused never reached c; its client hears so and takes its c_k back. BatchNorm's
    statistics have no control variate.
    """

    name: ClassVar[str] = "scaffold"
    summary: ClassVar[str] = "FedAvg with control variates against client drift"
    averages: ClassVar[str] = "the changes of weights and control variates"

    sees_latest: ClassVar[bool] = True

    server_lr: float = setting(1.0, "step η_g of the server along the mean change", gt=0)
    control: Literal["gradients", "displacement"] = setting(
        "gradients",
        "where c_k comes from: the mean of the gradients, or the distance gone (the paper's option II, which is no "
        "gradient with Adam or clipping)",
    )
    aggregate: Sharing = setting("same_arch", "whose weights are averaged, as for fedavg")
    weight: Weighting = setting("uniform", "how clients count in the mean: all alike, or by training samples")
    buffers: bool = setting(True, "average BatchNorm statistics as well")

    def requires(self) -> frozenset[Need]:
        """What has to be alike depends on the way of sharing."""
        return SHARING_NEEDS[self.aggregate]

    def init_server(self, ctx: Context) -> Variates:
        """One common initialisation per group, c = 0."""
        weights = initial_groups(ctx.task, self.aggregate, buffers=self.buffers)
        return Variates(weights, zero_groups(initial_groups(ctx.task, self.aggregate, buffers=False)))

    def broadcast(self, state: Variates, client: ClientInfo, ctx: Context) -> Start:
        """The client's slices of w and c."""
        weights, control = (slice_for(part, client, ctx.task) for part in (state.weights, state.control))
        return Start(weights, control, state.counted.get(client.name, -1))

    def client(self, me: Client, message: Start) -> Change:
        """w_k ← w_k - η(g - c_k + c) at each of K steps, then the new c_k."""
        load_tensors(me.model, message.weights)
        zeros = {name: torch.zeros_like(tensor) for name, tensor in message.control.items()}
        control = self._control(me, message) or zeros
        correction = {name: message.control[name] - control[name] for name in control}
        seen = {name: tensor.clone() for name, tensor in zeros.items()}

        def correct() -> None:
            for name, parameter in me.model.named_parameters():
                if parameter.grad is not None:
                    seen[name] += parameter.grad
                    parameter.grad += correction[name]

        steps = me.fit(cross_entropy_loss, adjust=correct).steps
        after = tensors_of(me.model, buffers=self.buffers)
        change = {name: after[name] - message.weights[name] for name in control}
        new = control
        if steps and self.control == "gradients":
            new = {name: total / steps for name, total in seen.items()}
        elif steps:  # c_k⁺ = c_k - c + (w - w_k)/(K·η)
            scale = me.training.effective_steps(steps) * me.lr
            new = {name: -correction[name] - change[name] / scale for name in control}
        me.private["control"], me.private["before"] = new, {"job": me.job, "control": control}
        statistics = {name: tensor for name, tensor in after.items() if is_statistic(name)}
        return Change(change, {name: new[name] - control[name] for name in control}, statistics)

    def _control(self, me: Client, message: Start) -> Tensors | None:
        """c_k as the server knows it: without the last job's change where that answer did not count."""
        before: dict[str, Any] | None = me.private.get("before")
        if before is not None and before["job"] != message.counted:
            kept: Tensors = before["control"]
            return kept
        last: Tensors | None = me.private.get("control")
        return last

    def server(self, state: Variates, updates: Sequence[Update[Change]], ctx: Context) -> Variates:
        """w ← w + η_g/m · ΣΔw and c ← c + 1/N · ΣΔc, where N counts all clients that own the tensor."""
        weights, control = {}, {}
        for key, (mine, of) in by_group(ctx, state.control, updates).items():
            changes = [update.payload.weights for update in mine]
            moved = mean_change(ctx, state.control[key], mine, changes, self.weight, of)
            kept = average(ctx, state.weights[key], mine, _statistics, self.weight, of)
            weights[key] = {
                name: tensor + self.server_lr * moved[name] if name in moved else tensor
                for name, tensor in kept.items()
            }
            control[key] = self._fold_control(state.control, key, mine, ctx)
        counted = {update.client.name: update.job for update in updates}
        return Variates(weights, control, {**state.counted, **counted})

    def _fold_control(
        self, control: Groups, key: str, updates: Sequence[Update[Change]], ctx: Context
    ) -> Tensors:
        """Every Δc enters c once, whenever it comes: c stays the mean of the clients' c_k."""
        result = dict(control[key])
        for name, owners in _owners(control, key, ctx).items():
            parts = [u.payload.control[name] for u in updates if u.fresh and name in u.payload.control]
            if parts:
                result[name] = control[key][name] + sum_changes(ctx.averaging, parts) / owners
        return result

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


def _statistics(payload: Start | Change) -> Tensors:
    tensors = payload.statistics if isinstance(payload, Change) else payload.weights
    return {name: tensor for name, tensor in tensors.items() if is_statistic(name)}


def _owners(groups: Groups, key: str, ctx: Context) -> Counter[str]:
    """How many clients of the whole group have each parameter; those without data never take part."""
    owners: Counter[str] = Counter()
    for architecture, clients in architectures_of(groups, key, ctx.task).items():
        for name in ctx.task.architectures[architecture].parameters:
            owners[name] += clients
    return owners
