"""FedIN (Chan et al.): intermediate layers learn from one batch of other clients' features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Need, PaperAccounting, Predictor, Update
from potluck.core.model import ClientModel
from potluck.core.norm import norms_at_rest
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Like, Shape
from potluck.core.sharing import (
    SHARING_NEEDS,
    Groups,
    Sharing,
    Weighting,
    average_groups,
    initial_groups,
    learned_numbers,
    slice_for,
)
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import load_tensors, proximal_term, tensors_of
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
class Store:
    """Server state: the weights, all pairs kept so far, and which client each came from."""

    weights: Groups
    entering: Tensor
    leaving: Tensor
    owners: Tensor


@dataclass
class FedIN(Method[Store, Knowledge, Knowledge]):
    """Local training near the received weights, joined at every step by a step towards others' features.

    `alleviation` joins the gradients: `eq14` (all the paper's results), `eq13` (the exact solution, per
    `granularity`), `sum` (no weighing), or `none`: the paper's "without Opt", where `in_steps` steps on the
    features (one per local epoch unless told) follow the local training. `outer_scale` multiplies the local
    gradient outside of the intermediate layers. `intermediate=False` is "without IN" (FedProx), `mu=0` "without
    Prox". `in_batch` pairs go to each client, `exclude_own` keeps a client's own from it, `max_pairs` bounds the
    store, oldest out first. `extractor_end` says where the intermediate layers begin.
    """

    name: ClassVar[str] = "fedin"
    summary: ClassVar[str] = "FedProx whose intermediate layers also learn from other clients' features"
    own_steps: ClassVar[bool] = True

    mu: float = 0.1
    alleviation: Alleviation = "eq14"
    granularity: Granularity = "tensor"
    outer_scale: float = 0.5
    intermediate: bool = True
    in_batch: int = 16
    in_steps: int | None = None
    extractor_end: Literal["stem", "layer1"] = "stem"
    exclude_own: bool = False
    max_pairs: int | None = None
    aggregate: Sharing = "layerwise"
    weight: Weighting = "uniform"
    buffers: bool = True

    @property
    def cut(self) -> int:
        """How many stages belong to the extractor."""
        return 1 if self.extractor_end == "stem" else 2

    def requires(self) -> frozenset[Need]:
        """Stages to cut at, and whatever the way of sharing asks."""
        return SHARING_NEEDS[self.aggregate] | {Need.STAGES}

    def init_server(self, ctx: Context) -> Store:
        """One common initialisation, no features."""
        entering, leaving = self._shapes(ctx)
        return Store(
            initial_groups(ctx.task, self.aggregate, buffers=self.buffers),
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

    def broadcast(self, state: Store, client: ClientInfo, ctx: Context) -> Knowledge:
        """w̄ and one batch of pairs; the same batch for everybody in a round (Alg. 1, line 5)."""
        weights = slice_for(state.weights, client, ctx.task)
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

        def local_loss(model: ClientModel, x: Tensor, y: Tensor, reference: Tensors) -> Tensor:  # eq. 4
            entering = extractor(x)
            leaving = middle(entering)
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
        return Knowledge(weights, *seen) if self.intermediate else Knowledge(weights)

    def _joint_gradient(
        self, model: ClientModel, middle: nn.Module, alignment: Callable[[], Tensor]
    ) -> Callable[[], None]:
        """What replaces the local gradient at each step: Z of eq. 13 or 14."""
        inner = list(middle.parameters())
        outer = [tensor for tensor in model.parameters() if all(tensor is not one for one in inner)]

        def adjust() -> None:
            found = torch.autograd.grad(alignment(), inner, allow_unused=True)
            features = [torch.zeros_like(p) if g is None else g for p, g in zip(inner, found, strict=True)]
            local = [torch.zeros_like(p) if p.grad is None else p.grad for p in inner]
            joint = alleviate(features, local, self.alleviation, self.granularity)
            for parameter, gradient in zip(inner, joint, strict=True):
                parameter.grad = gradient
            for parameter in outer:
                if parameter.grad is not None and self.alleviation != "sum":
                    parameter.grad *= self.outer_scale

        return adjust

    def server(self, state: Store, updates: Sequence[Update[Knowledge]], ctx: Context) -> Store:
        """Q ← Q ∪ pairs, and the mean of the weights over their owners (sec. 4.3)."""
        pairs = [(state.entering, state.leaving, state.owners)]
        for update in updates:
            entering, leaving = update.payload.entering, update.payload.leaving
            if entering is not None and leaving is not None and _fits(state, entering, leaving):
                pairs.append((entering, leaving, torch.full((len(entering),), update.client.index)))
        entering, leaving, owners = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        oldest = 0 if self.max_pairs is None else max(0, len(owners) - self.max_pairs)
        weights = [update.payload.weights for update in updates]
        averaged = average_groups(state.weights, updates, weights, self.weight)
        return Store(averaged, entering[oldest:], leaving[oldest:], owners[oldest:])

    def predict(self, me: Client, message: Knowledge | None) -> Predictor:
        """The trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.weights)

    def predict_server(self, state: Store, ctx: Context) -> Predictor | None:
        """The largest architecture with the shared weights, where one set serves everybody."""
        return global_predictor(state.weights, ctx)

    def paper_accounting(self, down: Knowledge, up: Knowledge) -> PaperAccounting:
        """Table 6 counts learned parameters and one batch of pairs, in one direction."""
        sent, got = (
            one.numbers() - Knowledge(one.weights).numbers() + learned_numbers(one.weights)
            for one in (up, down)
        )
        return PaperAccounting(sent, got, "BatchNorm statistics not counted (Table 6)")


def _fits(state: Store, entering: Tensor, leaving: Tensor) -> bool:
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
