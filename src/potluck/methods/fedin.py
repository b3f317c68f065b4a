"""FedIN (Chan et al.): intermediate layers learn from one batch of other clients' features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from potluck.core import (
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
    Tensors,
    Update,
    load_tensors,
    norms_at_rest,
    setting,
    tensors_of,
)
from potluck.kit import (
    SHARING_NEEDS,
    Groups,
    Sharing,
    Weighting,
    average_groups,
    by_group,
    group_of,
    initial_groups,
    learned_numbers,
    proximal_term,
    slice_for,
)
from potluck.methods.fedavg import global_predictor

Alleviation = Literal["eq14", "eq13", "sum", "none"]
Granularity = Literal["tensor", "middle"]


@dataclass(frozen=True)
class Knowledge(Payload):
    """Either way: weights, and pairs of what enters and what leaves the intermediate layers (s_in, s_out)."""

    weights: Annotated[Tensors, Like("model", subset=True)]
    entering: Annotated[Tensor, Shape("rows", ...)] | None = None
    leaving: Annotated[Tensor, Shape("rows", ...)] | None = None


@dataclass
class Exchange:
    """Server state: the weights and which of them clients have sent, all pairs so far and whose each was."""

    weights: Groups
    known: dict[str, list[str]]
    entering: Tensor
    leaving: Tensor
    owners: Tensor


@dataclass
class FedIN(Method[Exchange, Knowledge, Knowledge]):
    """Local training near the received weights, joined at every step by a step towards others' features."""

    name: ClassVar[str] = "fedin"
    summary: ClassVar[str] = "FedProx whose intermediate layers also learn from other clients' features"
    averages: ClassVar[str] = "the weights"

    sees_latest: ClassVar[bool] = True

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
    aggregate: Sharing = setting("layerwise", "whose weights are averaged, as for fedavg")
    weight: Weighting = setting("uniform", "how clients count in the mean: all alike, or by training samples")
    buffers: bool = setting(True, "average BatchNorm statistics as well")

    @property
    def cut(self) -> int:
        """How many stages belong to the extractor."""
        return 1 if self.extractor_end == "stem" else 2

    def requires(self) -> frozenset[Need]:
        """Stages to cut at, and whatever the way of sharing asks."""
        return SHARING_NEEDS[self.aggregate] | {Need.STAGES}

    def init_server(self, ctx: Context) -> Exchange:
        """Weights that nobody is sent before clients have sent theirs, unless all begin in common; no features."""
        entering, leaving = self._shapes(ctx)
        weights = initial_groups(ctx.task, self.aggregate, buffers=self.buffers)
        return Exchange(
            weights,
            {key: list(group) if self.common_start else [] for key, group in weights.items()},
            torch.empty(0, *entering, dtype=ctx.task.dtype, device=ctx.task.device),
            torch.empty(0, *leaving, dtype=ctx.task.dtype, device=ctx.task.device),
            torch.empty(0, dtype=torch.int64),
        )

    def _shapes(self, ctx: Context) -> tuple[tuple[int, ...], tuple[int, ...]]:
        shapes = {name: a.stage_shapes for name, a in ctx.task.architectures.items()}
        usual = next(iter(shapes.values()))
        for name, stages in shapes.items():
            if len(stages) <= self.cut or stages[self.cut - 1] != usual[self.cut - 1]:
                raise PotluckError(
                    f"method.extractor_end {self.extractor_end!r} does not fit {name!r}, whose stages give "
                    f"{', '.join(map(str, stages))}; choose 'stem', or models of one family with more stages."
                )
        return usual[self.cut - 1], usual[-1]

    def broadcast(self, state: Exchange, client: ClientInfo, ctx: Context) -> Knowledge:
        """w̄ and one batch of pairs; the same batch for everybody in a round (Alg. 1, line 5)."""
        known = state.known[group_of(state.weights, client)]
        everything = slice_for(state.weights, client, ctx.task)
        weights = {name: tensor for name, tensor in everything.items() if name in known}
        rows = torch.arange(len(state.owners))
        if self.exclude_own:
            rows = rows[state.owners != client.index]
        rows = rows[torch.randperm(len(rows), generator=ctx.rng("features"))[: self.in_batch]]
        if not self.intermediate or len(rows) == 0:
            return Knowledge(weights)
        return Knowledge(weights, state.entering[rows], state.leaving[rows])

    def client(self, me: Client, message: Knowledge) -> Knowledge:
        """Train on both objectives, then send the weights and the pairs of the last minibatch seen."""
        load_tensors(me.model, message.weights)
        extractor, middle = (
            nn.Sequential(*me.model.stages[part]) for part in (slice(self.cut), slice(self.cut, None))
        )
        alignment = _alignment(middle, message)
        adjust = None
        if alignment and self.alleviation != "none":
            adjust = self._joint_gradient(me.model, middle, alignment)
        seen: list[Tensor] = []
        full = me.batch_size()

        def local_loss(model: ClientModel, x: Tensor, y: Tensor, reference: Tensors) -> Tensor:  # eq. 4
            entering = extractor(x)
            leaving = middle(entering)
            if len(x) >= full or not seen:  # what is sent comes from the last full batch
                seen[:] = entering.detach(), leaving.detach()
            scores = model.head(model.pool(leaving))
            return F.cross_entropy(scores, y) + proximal_term(model, reference, self.mu)

        me.fit(local_loss, tensors_of(me.model, buffers=False), adjust=adjust)
        if alignment and not adjust:
            optimizer = me.optimizer(middle, name="intermediate")
            with me.training_mode(me.model):
                for _ in range(me.training.epochs if self.in_steps is None else self.in_steps):
                    me.step(optimizer, alignment())
        weights = tensors_of(me.model, buffers=self.buffers)
        sent = [one.to(me.task.dtype) for one in seen] if self.intermediate else []
        return Knowledge(weights, *sent)

    def _joint_gradient(
        self, model: ClientModel, middle: nn.Module, alignment: Callable[[], Tensor]
    ) -> Callable[[], None]:
        """What replaces the local gradient at each step: Z of eq. 13 or 14."""
        inner = list(middle.parameters())
        outer = [tensor for tensor in model.parameters() if all(tensor is not one for one in inner)]
        scale = (0.5 if self.alleviation == "eq14" else 1.0) if self.outer_scale is None else self.outer_scale

        def adjust() -> None:
            found = torch.autograd.grad(alignment(), inner, allow_unused=True)
            features = [torch.zeros_like(p) if g is None else g for p, g in zip(inner, found, strict=True)]
            local = [torch.zeros_like(p) if p.grad is None else p.grad for p in inner]
            joint = alleviate(features, local, self.alleviation, self.granularity)
            for parameter, gradient in zip(inner, joint, strict=True):
                parameter.grad = gradient
            for parameter in outer:
                if parameter.grad is not None:
                    parameter.grad *= scale

        return adjust

    def server(self, state: Exchange, updates: Sequence[Update[Knowledge]], ctx: Context) -> Exchange:
        """Q ← Q ∪ pairs, and the mean of the weights over their owners (sec. 4.3)."""
        pairs = [(state.entering, state.leaving, state.owners)]
        for update in (one for one in updates if one.fresh):
            entering, leaving = update.payload.entering, update.payload.leaving
            if entering is not None and leaving is not None and _fits(state, entering, leaving):
                pairs.append((entering, leaving, torch.full((len(entering),), update.client.index)))
        entering, leaving, owners = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        oldest = 0 if self.max_pairs is None else max(0, len(owners) - self.max_pairs)
        averaged = average_groups(ctx, state.weights, updates, attrgetter("weights"), self.weight)
        known = {
            key: sorted({*state.known[key], *(name for one in mine for name in one.payload.weights)})
            for key, (mine, _) in by_group(ctx, state.weights, updates).items()
        }
        return Exchange(averaged, known, entering[oldest:], leaving[oldest:], owners[oldest:])

    def predict(self, me: Client, message: Knowledge | None) -> Predictor:
        """The trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.weights)

    def predict_server(self, state: Exchange, ctx: Context) -> Predictor | None:
        """The largest architecture with the shared weights, where one set serves everybody."""
        return global_predictor(state.weights, ctx)

    def paper_accounting(self, down: Knowledge, up: Knowledge) -> PaperAccounting:
        """Table 6 counts learned parameters and one batch of pairs, in one direction."""
        sent, got = (
            one.numbers() - Knowledge(one.weights).numbers() + learned_numbers(one.weights)
            for one in (up, down)
        )
        return PaperAccounting(sent, got, "BatchNorm statistics not counted (Table 6)")


def _fits(state: Exchange, entering: Tensor, leaving: Tensor) -> bool:
    """Whether pairs can be stacked; the weights of a sender of others were checked by themselves and count."""
    return entering.shape[1:] == state.entering.shape[1:] and leaving.shape[1:] == state.leaving.shape[1:]


def _alignment(middle: nn.Module, message: Knowledge) -> Callable[[], Tensor] | None:
    """The loss of IN training (eq. 8), mean over all elements; it leaves BatchNorm's statistics alone."""
    entering, leaving = message.entering, message.leaving
    if entering is None or leaving is None:
        return None

    def loss() -> Tensor:
        spare = {name: tensor.clone() for name, tensor in middle.named_buffers()}
        with norms_at_rest(*([middle] if len(entering) == 1 else [])):
            return F.mse_loss(functional_call(middle, spare, (entering,)), leaving)

    return loss


def alleviate(
    features: Sequence[Tensor], local: Sequence[Tensor], rule: Alleviation, granularity: Granularity
) -> list[Tensor]:
    """Z from G_IN and G_local: eq. 14 with λ = 1, eq. 13, or the plain sum."""
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
