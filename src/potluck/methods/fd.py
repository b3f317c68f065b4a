"""FD (Jeong et al., 2018; FedDistill): clients distil from the mean output of each class over all clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from potluck.method import (
    Client,
    ClientInfo,
    Context,
    Method,
    PaperAccounting,
    SecureSums,
    Supports,
    Tensors,
    Update,
    kit,
    setting,
)

Target = Literal["kl", "softmax_excl_own", "raw_ce", "mse"]


@dataclass
class Outputs:
    """Server: q_c, how many clients are in it, and (to leave a client out) what each contributed."""

    table: kit.ClassTable
    senders: Tensor
    own: dict[str, Tensors]


@dataclass
class FD(Method[Outputs, kit.ClassVectors, kit.ClassLogits]):
    """Local training on cross-entropy plus a pull towards the class's mean output over clients."""

    name: ClassVar[str] = "fd"
    summary: ClassVar[str] = "distillation from the mean logits of each class"
    supports: ClassVar[Supports] = Supports(
        robust="the mean outputs of each class",
        asynchronous={"target": ("kl", "raw_ce", "mse")},
        sums=SecureSums(when={"target": ("kl", "raw_ce", "mse")}),
    )

    distillation_weight: float = setting(1.0, "weight λ of the pull", ge=0)
    target: Target = setting(
        "kl",
        "what pulls: KL to the softmax of mean logits; softmax_excl_own: cross-entropy with the other clients' mean "
        "softmax (the original); raw_ce: with raw mean logits (HtFLlib, unbounded below); mse: distance of logits",
    )
    keep_old: bool = setting(True, "keep the mean of a class that no client sent this time")

    def init_server(self, ctx: Context) -> Outputs:
        """Start without means."""
        classes = ctx.task.num_classes
        senders = torch.zeros(classes, dtype=torch.int64, device=ctx.task.device)
        return Outputs(kit.ClassTable.empty(ctx.task, classes), senders, {})

    def broadcast(self, state: Outputs, client: ClientInfo, ctx: Context) -> kit.ClassVectors:
        """q, without the client's own contribution where the target says so."""
        own = state.own.get(client.name)
        return state.table.message() if own is None else _mean_of_others(state, own).message()

    def client(self, me: Client, message: kit.ClassVectors) -> kit.ClassLogits:
        """Train towards the labels and q_y; average the outputs q_{k,c} of the same passes per class."""
        received = message.table(me.task.num_classes)

        def loss(x: Tensor, y: Tensor) -> tuple[kit.LossParts, Tensor]:
            scores = me.model(x)
            pull = pull_to(self.target, scores, received.rows[y]) * received.known[y]
            shared = scores.softmax(dim=1) if self.target == "softmax_excl_own" else scores
            label_loss = F.cross_entropy(scores, y)
            return kit.LossParts(label_loss + self.distillation_weight * pull.mean(), label_loss), shared

        rows, labels, _ = kit.fit_with_class_means(me, loss)
        return kit.ClassLogits(rows, labels)

    def server(self, state: Outputs, updates: Sequence[Update[kit.ClassLogits]], ctx: Context) -> Outputs:
        """q_c ← unweighted mean over the senders of class c."""
        old = state if self.keep_old else self.init_server(ctx)
        if self.target == "softmax_excl_own":
            return _with_contributions(old, updates, ctx)
        sent = [(update.payload.rows, update.payload.labels) for update in updates]
        table, senders = kit.update_class_table(ctx, old.table, updates, sent)
        return Outputs(table, torch.where(senders > 0, senders, old.senders), {})

    def forget(self, state: Outputs, me: Client, ctx: Context) -> Outputs | None:
        """Take the client's contribution out of the means that still hold it, where contributions are kept."""
        if self.target != "softmax_excl_own":
            return None
        own = state.own.get(me.info.name)
        if own is None:
            return state
        table = _mean_of_others(state, own)
        contributions = {name: entry for name, entry in state.own.items() if name != me.info.name}
        return Outputs(table, state.senders - own["held"].to(torch.int64), contributions)

    def paper_accounting(self, down: kit.ClassVectors, up: kit.ClassLogits) -> PaperAccounting:
        """Count own classes only, both ways, without ids (FedGH's Table 3)."""
        count = up.rows.numel()
        return PaperAccounting(count, count, "own classes both ways, no class ids (FedGH, Table 3)")


def pull_to(target: Target, scores: Tensor, mean: Tensor) -> Tensor:
    """Return the regulariser per sample, `[batch]`, towards the mean output of its class."""
    if target == "kl":  # KL(σ(q_y) ‖ σ(o))
        return kit.softmax_kl(mean, scores)
    if target == "mse":
        return (scores - mean).square().mean(dim=1)
    return -(mean * F.log_softmax(scores, dim=1)).sum(dim=1)


# -- the original: each client gets the mean of the others --------------------------------------------------


def _mean_of_others(state: Outputs, own: Tensors) -> kit.ClassTable:
    """Take a client's own contribution out of the means."""
    senders = state.senders - own["held"].to(torch.int64)
    total = state.table.rows * state.senders[:, None] - own["rows"]
    return kit.ClassTable(total / senders.clamp(min=1)[:, None], senders > 0)


def _with_contributions(old: Outputs, updates: Sequence[Update[kit.ClassLogits]], ctx: Context) -> Outputs:
    """Average whole rounds by plain sums, which can be taken apart again, and keep each client's contribution."""
    clients, classes = kit.client_vectors(ctx, updates, "rows"), ctx.task.num_classes
    rows, senders = kit.mean_by_class([(client.vectors, client.labels) for client in clients], classes)
    new = senders > 0
    own = {name: {"rows": e["rows"] * ~new[:, None], "held": e["held"] & ~new} for name, e in old.own.items()}
    for client in clients:
        part, mask = kit.scatter_by_class(client.vectors, client.labels, classes)
        before = own.get(client.client.name, {"rows": torch.zeros_like(part), "held": torch.zeros_like(mask)})
        own[client.client.name] = {"rows": before["rows"] + part, "held": before["held"] | mask}
    return Outputs(old.table.replaced(rows, new), torch.where(new, senders, old.senders), own)
