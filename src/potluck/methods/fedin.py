"""FedIN (Chan et al.): intermediate layers learn from one batch of other clients' features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from potluck.method import (
    Client,
    ClientInfo,
    ClientModel,
    Context,
    Like,
    Method,
    Need,
    PaperAccounting,
    Payload,
    PotluckError,
    Predictor,
    Shape,
    Supports,
    Tensors,
    Update,
    kit,
    setting,
)

Alleviation = Literal["eq14", "eq13", "sum", "none"]
Granularity = Literal["tensor", "middle"]


@dataclass(frozen=True)
class Knowledge(Payload):
    """Both directions: weights, and pairs of inputs and outputs of the intermediate layers (s_in, s_out)."""

    weights: Annotated[Tensors, Like("model", subset=True)]
    entering: Annotated[Tensor, Shape("rows", ...)] | None = None
    leaving: Annotated[Tensor, Shape("rows", ...)] | None = None


@dataclass
class Exchange:
    """Server: the weights and which of them clients have sent, all pairs so far and the client of each."""

    weights: kit.Groups
    known: dict[str, list[str]]
    entering: Tensor
    leaving: Tensor
    owners: Tensor


@dataclass
class FedIN(Method[Exchange, Knowledge, Knowledge]):
    """Local training near the received weights, joined at every step by a step towards others' features."""

    name: ClassVar[str] = "fedin"
    summary: ClassVar[str] = "FedProx whose intermediate layers also learn from other clients' features"
    supports: ClassVar[Supports] = Supports(
        robust="the weights",
        max_share={"weight": "samples"},
        single_answers="it passes single clients' features on to others",
    )

    mu: float = setting(0.1, "strength μ of the pull towards the received weights; 0 is 'without Prox'", ge=0)
    alleviation: Alleviation = setting(
        "eq14",
        "how both gradients join: eq. 14 (the paper's results), eq. 13 (the exact solution), their sum, or none: steps "
        "on features after the local training ('without Opt')",
    )
    granularity: Granularity = setting(
        "tensor", "what eq. 13 is solved for: each tensor, or the middle as a whole"
    )
    outer_scale: float | None = setting(
        None, "factor on local gradients outside of the middle; unset: 0.5 with eq. 14, else 1", ge=0
    )
    intermediate: bool = setting(True, "exchange features at all; false is 'without IN' (fedprox)")
    in_batch: int = setting(16, "pairs of features sent to a client", ge=1)
    in_steps: int | None = setting(
        None, "steps on features where they follow; unset: one per local epoch", ge=0
    )
    extractor_end: Literal["stem", "layer1"] = setting(
        "stem", "where the middle begins: after the stem, or a stage on"
    )
    exclude_own: bool = setting(False, "send no client its own pairs")
    max_pairs: int | None = setting(None, "pairs that the server keeps, oldest out first; unset: all", ge=1)
    common_start: bool = setting(False, "clients begin with common weights instead of their own")
    aggregate: kit.Sharing = setting("layerwise", "whose weights are averaged, as for fedavg")
    weight: kit.Weighting = setting(
        "uniform", "how clients count in the mean: all alike, or by training samples"
    )
    buffers: bool = setting(True, "average BatchNorm statistics as well")

    @property
    def cut(self) -> int:
        """Return the number of stages that belong to the extractor."""
        return 1 if self.extractor_end == "stem" else 2

    def init_server(self, ctx: Context) -> Exchange:
        """Start without pairs; without `common_start` weights are sent once clients have sent theirs."""
        entering, leaving = self._shapes(ctx)
        weights = kit.initial_groups(ctx.task, self.aggregate, buffers=self.buffers)
        return Exchange(
            weights,
            {key: list(group) if self.common_start else [] for key, group in weights.items()},
            torch.empty(0, *entering, dtype=ctx.task.dtype, device=ctx.task.device),
            torch.empty(0, *leaving, dtype=ctx.task.dtype, device=ctx.task.device),
            torch.empty(0, dtype=torch.int64),
        )

    def broadcast(self, state: Exchange, client: ClientInfo, ctx: Context) -> Knowledge:
        """w̄ and one batch of pairs, the same for all clients of a round (Alg. 1, line 5)."""
        names = state.known[kit.group_of(state.weights, client)]
        tensors = kit.tensors_for_client(state.weights, client, ctx.task)
        weights = {name: tensor for name, tensor in tensors.items() if name in names}
        rows = torch.arange(len(state.owners))
        if self.exclude_own:
            rows = rows[state.owners != client.index]
        rows = rows[torch.randperm(len(rows), generator=ctx.rng("features"))[: self.in_batch]]
        if not self.intermediate or len(rows) == 0:
            return Knowledge(weights)
        return Knowledge(weights, state.entering[rows], state.leaving[rows])

    def client(self, me: Client, message: Knowledge) -> Knowledge:
        """Train on both objectives, then send the weights and the pairs of the last minibatch seen."""
        kit.load_tensors(me.model, message.weights)
        extractor, middle = (
            nn.Sequential(*me.model.stages[part]) for part in (slice(self.cut), slice(self.cut, None))
        )
        alignment = _alignment(middle, message)
        adjust = None
        if alignment and self.alleviation != "none":
            adjust = self._joint_gradient(me.model, middle, alignment)
        seen: list[Tensor] = []
        full = me.batch_size()

        def local_loss(
            model: ClientModel, x: Tensor, y: Tensor, reference: Tensors
        ) -> kit.LossParts:  # eq. 4
            entering = extractor(x)
            leaving = middle(entering)
            if len(x) >= full or not seen:  # what is sent comes from the last full batch
                seen[:] = entering.detach(), leaving.detach()
            scores = model.head(model.pool(leaving))
            label_loss = F.cross_entropy(scores, y)
            return kit.LossParts(label_loss + kit.proximal_term(model, reference, self.mu), label_loss)

        me.fit(local_loss, kit.tensors_of(me.model, buffers=False), adjust=adjust)
        if alignment and not adjust:
            optimizer = me.optimizer(middle, name="intermediate")
            with me.training_mode(me.model):
                for _ in range(me.training.epochs if self.in_steps is None else self.in_steps):
                    me.step(optimizer, alignment())
        weights = kit.tensors_of(me.model, buffers=self.buffers)
        pairs = [tensor.to(me.task.dtype) for tensor in seen] if self.intermediate else []
        return Knowledge(weights, *pairs)

    def server(self, state: Exchange, updates: Sequence[Update[Knowledge]], ctx: Context) -> Exchange:
        """Q ← Q ∪ pairs; w̄ ← the mean of the weights over the clients that have them (sec. 4.3)."""
        pairs = [(state.entering, state.leaving, state.owners)]
        for client, entering, leaving in kit.new_values(updates, "entering", "leaving"):
            if _has_shapes_of(state, entering, leaving):
                pairs.append((entering, leaving, torch.full((len(entering),), client.index)))
        entering, leaving, owners = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        oldest = 0 if self.max_pairs is None else max(0, len(owners) - self.max_pairs)
        weights = kit.average_groups(ctx, state.weights, updates, "weights", by=self.weight)
        names = {
            key: sorted({*state.known[key], *(name for update in members for name in update.payload.weights)})
            for key, (members, _) in kit.split_by_group(ctx, state.weights, updates).items()
        }
        ctx.note("pairs", len(owners) - oldest)
        return Exchange(weights, names, entering[oldest:], leaving[oldest:], owners[oldest:])

    def predict(self, me: Client, message: Knowledge | None) -> Predictor:
        """Return the trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.weights)

    def predict_server(self, state: Exchange, ctx: Context) -> Predictor | None:
        """Return the largest architecture with the shared weights, where all clients share one set."""
        return kit.global_predictor(state.weights, ctx)

    def requires(self) -> frozenset[Need]:
        """Return stages to cut at, and what the way of sharing needs."""
        return kit.SHARING_NEEDS[self.aggregate] | {Need.STAGES}

    def paper_accounting(self, down: Knowledge, up: Knowledge) -> PaperAccounting:
        """Count learned parameters and one batch of pairs, in one direction (Table 6)."""
        sent, received = (
            payload.numel() - Knowledge(payload.weights).numel() + kit.count_parameters(payload.weights)
            for payload in (up, down)
        )
        return PaperAccounting(sent, received, "BatchNorm statistics not counted (Table 6)")

    def _shapes(self, ctx: Context) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of one sample where it enters and leaves the intermediate layers."""
        shapes = {name: a.stage_shapes for name, a in ctx.task.architectures.items()}
        first = next(iter(shapes.values()))
        for name, stages in shapes.items():
            if len(stages) <= self.cut or stages[self.cut - 1] != first[self.cut - 1]:
                raise PotluckError(
                    f"method.extractor_end {self.extractor_end!r} does not fit {name!r}, whose stages give "
                    f"{', '.join(map(str, stages))}; choose 'stem', or models of one family with more stages."
                )
        return first[self.cut - 1], first[-1]

    def _joint_gradient(
        self, model: ClientModel, middle: nn.Module, alignment: Callable[[], Tensor]
    ) -> Callable[[], None]:
        """Return what replaces the local gradient at each step: Z of eq. 13 or 14."""
        inner = list(middle.parameters())
        outer = [tensor for tensor in model.parameters() if all(tensor is not each for each in inner)]
        scale = (0.5 if self.alleviation == "eq14" else 1.0) if self.outer_scale is None else self.outer_scale

        def adjust() -> None:
            gradients = torch.autograd.grad(alignment(), inner, allow_unused=True)
            features = [
                torch.zeros_like(p) if g is None else g for p, g in zip(inner, gradients, strict=True)
            ]
            local = [torch.zeros_like(p) if p.grad is None else p.grad for p in inner]
            joint = alleviate(features, local, self.alleviation, self.granularity)
            for parameter, gradient in zip(inner, joint, strict=True):
                parameter.grad = gradient
            for parameter in outer:
                if parameter.grad is not None:
                    parameter.grad *= scale

        return adjust


def _has_shapes_of(state: Exchange, entering: Tensor, leaving: Tensor) -> bool:
    """Return whether pairs can be stacked; where they cannot, the sender's weights still count."""
    return entering.shape[1:] == state.entering.shape[1:] and leaving.shape[1:] == state.leaving.shape[1:]


def _alignment(middle: nn.Module, message: Knowledge) -> Callable[[], Tensor] | None:
    """Return the loss of IN training (eq. 8), mean over all elements; BatchNorm's statistics do not change."""
    entering, leaving = message.entering, message.leaving
    if entering is None or leaving is None:
        return None

    def loss() -> Tensor:
        buffers = {name: tensor.clone() for name, tensor in middle.named_buffers()}
        with kit.batch_norm_in_eval_mode(*([middle] if len(entering) == 1 else [])):
            return F.mse_loss(functional_call(middle, buffers, (entering,)), leaving)

    return loss


def alleviate(
    features: Sequence[Tensor], local: Sequence[Tensor], rule: Alleviation, granularity: Granularity
) -> list[Tensor]:
    """Return Z from G_IN and G_local: eq. 14 with λ = 1, eq. 13, or the plain sum."""
    if rule != "eq13":
        share = 0.5 if rule == "eq14" else 1.0
        return [inner + share * outer for inner, outer in zip(features, local, strict=True)]
    squares = [(outer * outer).sum() for outer in local]  # a
    products = [(outer * inner).sum() for inner, outer in zip(features, local, strict=True)]  # b
    if granularity == "middle":
        squares = [torch.stack(squares).sum()] * len(squares)
        products = [torch.stack(products).sum()] * len(products)
    return [
        inner - b / a * outer if b < 0 < a else inner
        for inner, outer, a, b in zip(features, local, squares, products, strict=True)
    ]
