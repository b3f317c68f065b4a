"""FD (Jeong et al., 2018; FedDistill): clients distil from the mean output of each class over all clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from potluck.core import (
    Averaging,
    ClassMean,
    Client,
    ClientInfo,
    Context,
    Labels,
    Method,
    PaperAccounting,
    Payload,
    Shape,
    Tensors,
    Update,
    setting,
)
from potluck.kit import ClassRows, ClassTable, collecting, fold_rows, scatter_rows, screened

Target = Literal["kl", "softmax_excl_own", "raw_ce", "mse"]


@dataclass(frozen=True)
class MeanOutputs(Payload):
    """Client to server: the mean output of each class it trained on, q_{k,c}."""

    rows: Annotated[Tensor, Shape("rows", "classes")]
    labels: Annotated[Tensor, Labels()]


@dataclass
class Outputs:
    """Server: q_c, how many clients are in it, and (to leave a client out) what each put in."""

    table: ClassTable
    senders: Tensor
    own: dict[str, Tensors]


@dataclass
class FD(Method[Outputs, ClassRows, MeanOutputs]):
    """Local training on cross-entropy plus a pull towards the class's mean output over clients."""

    name: ClassVar[str] = "fd"
    summary: ClassVar[str] = "distillation from the mean logits of each class"
    averages: ClassVar[str] = "the mean outputs of each class"

    sees_latest: ClassVar[bool] = True

    distillation_weight: float = setting(1.0, "weight λ of the pull", ge=0)
    target: Target = setting(
        "kl",
        "what pulls: KL to the softmax of mean logits; softmax_excl_own: cross-entropy with the other clients' mean "
        "softmax (the original); raw_ce: with raw mean logits (HtFLlib, unbounded below); mse: distance of logits",
    )
    keep_old: bool = setting(True, "keep the mean of a class that nobody sent this time")

    def whole_rounds(self) -> str:
        """A client's own part can be taken out of a round's sum only."""
        own = "with target 'softmax_excl_own' takes each client's own part out of a plain sum"
        return own if self.target == "softmax_excl_own" else ""

    def init_server(self, ctx: Context) -> Outputs:
        """No class has a mean yet."""
        classes = ctx.task.num_classes
        senders = torch.zeros(classes, dtype=torch.int64, device=ctx.task.device)
        return Outputs(ClassTable.empty(ctx.task, classes), senders, {})

    def broadcast(self, state: Outputs, client: ClientInfo, ctx: Context) -> ClassRows:
        """q, without the client's own contribution where the target says so."""
        own = state.own.get(client.name)
        if own is None:
            return state.table.message()
        others = state.senders - own["held"].to(torch.int64)
        total = state.table.rows * state.senders[:, None] - own["rows"]
        return ClassTable(total / others.clamp(min=1)[:, None], others > 0).message()

    def client(self, me: Client, message: ClassRows) -> MeanOutputs:
        """Train towards the labels and q_y; collect the outputs of the same passes per class."""
        received, means = message.table(me.task.num_classes), ClassMean(me.task.num_classes)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            scores = me.model(x)
            pull = pull_to(self.target, scores, received.rows[y]) * received.known[y]
            shared = scores.softmax(dim=1) if self.target == "softmax_excl_own" else scores
            return F.cross_entropy(scores, y) + self.distillation_weight * pull.mean(), shared

        me.fit_models({"model": me.model}, collecting(loss, means))
        rows, labels, _ = means.result()
        return MeanOutputs(rows, labels)

    def server(self, state: Outputs, updates: Sequence[Update[MeanOutputs]], ctx: Context) -> Outputs:
        """q_c ← unweighted mean over the senders of class c."""
        old = state if self.keep_old else self.init_server(ctx)
        sent = [(update.payload.rows, update.payload.labels) for update in updates]
        if (
            self.target == "softmax_excl_own"
        ):  # only a plain sum can be taken apart again: of what can be believed
            sent, _ = screened(ctx.averaging, sent, ctx.task.num_classes)
            ctx = replace(ctx, averaging=Averaging())
        table, senders = fold_rows(ctx, old.table, updates, sent)
        fresh = senders > 0
        own: dict[str, Tensors] = {}
        if self.target == "softmax_excl_own":
            own = {name: _keep(entry, ~fresh) for name, entry in old.own.items()}
            for update, (mine, labels) in zip(updates, sent, strict=True):
                mine, held = scatter_rows(mine, labels, ctx.task.num_classes)
                before = own.get(update.client.name, {"rows": torch.zeros_like(mine), "held": ~fresh & fresh})
                own[update.client.name] = {"rows": before["rows"] + mine, "held": before["held"] | held}
        return Outputs(table, torch.where(fresh, senders, old.senders), own)

    def paper_accounting(self, down: ClassRows, up: MeanOutputs) -> PaperAccounting:
        """The count of FedGH's Table 3: own classes only, both ways, without ids."""
        count = up.rows.numel()
        return PaperAccounting(count, count, "own classes both ways, no class ids (FedGH, Table 3)")


def pull_to(target: Target, scores: Tensor, mean: Tensor) -> Tensor:
    """The regulariser per sample, `[batch]`, towards the mean output of its class."""
    if target == "kl":  # KL(σ(q_y) ‖ σ(o))
        log_mean, log_scores = F.log_softmax(mean, dim=1), F.log_softmax(scores, dim=1)
        return F.kl_div(log_scores, log_mean, reduction="none", log_target=True).sum(dim=1)
    if target == "mse":
        return (scores - mean).square().mean(dim=1)
    return -(mean * F.log_softmax(scores, dim=1)).sum(dim=1)


def _keep(entry: Tensors, classes: Tensor) -> Tensors:
    """A contribution without the classes whose mean was made anew."""
    return {"rows": entry["rows"] * classes[:, None], "held": entry["held"] & classes}
