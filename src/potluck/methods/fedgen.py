"""FedGen (Zhu et al., ICML 2021), head form: a generator of features carries what the heads know."""

from __future__ import annotations

from collections.abc import Sequence
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
    Counts,
    Integers,
    Like,
    Method,
    Payload,
    Predictor,
    Range,
    Shape,
    Supports,
    Tensors,
    Update,
    kit,
    setting,
)


@dataclass(frozen=True)
class HeadAndGenerator(Payload):
    """Server to client: the averaged head; once it has learned, the generator and how to draw labels."""

    head: Annotated[Tensors, Like("head")]
    generator: Tensors | None = None
    draw: Annotated[Tensor, Shape("classes"), Integers(), Range(0)] | None = None
    counts_wanted: int | None = None


@dataclass(frozen=True)
class HeadAndCounts(Payload):
    """Client to server: its head and, once, its samples per class (a disclosure: see the docs)."""

    head: Annotated[Tensors, Like("head")]
    counts: Annotated[Tensor, Shape("classes"), Counts()] | None = None


class Generator(nn.Module):
    """Makes features for given labels out of uniform noise."""

    def __init__(self, classes: int, noise: int, hidden: int, features: int) -> None:
        super().__init__()
        self.classes = classes
        self.net = nn.Sequential(
            nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)
        )

    def forward(self, labels: Tensor, noise: Tensor) -> Tensor:
        """Return `[batch, features]` for a batch of labels and as many rows of noise."""
        generated: Tensor = self.net(
            torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], dim=1)
        )
        return generated


@dataclass
class Server:
    """Server: the averaged head, the generator and whether it was trained, label counts per client."""

    head: Tensors
    generator: Generator
    trained: bool
    counts: dict[str, Tensor]


@dataclass
class FedGen(Method[Server, HeadAndGenerator, HeadAndCounts]):
    """Heads are averaged; clients also train theirs on features that a server-side generator makes."""

    name: ClassVar[str] = "fedgen"
    summary: ClassVar[str] = "an averaged head, and a generator of features trained on the server"
    needs = kit.HEAD_NEEDS
    supports: ClassVar[Supports] = Supports(
        robust="the heads, and which of them the generator is trained under",
        max_share={"weight": "samples"},
        single_answers="its generator is trained under the head of each client",
    )

    variant: Literal["htfllib", "original"] = setting(
        "htfllib",
        "losses: the generator serves the averaged head (HtFLlib), or the authors': each head by its share of a class, "
        "a diversity term, and distillation on clients",
    )
    generator_weight: float | None = setting(
        None,
        "weight of generated features in local training; unset: 1 (htfllib) or 10 (original); 0 is lg-fedavg",
        ge=0,
    )
    noise_dim: int = setting(32, "numbers of noise that a feature vector is made from", ge=1)
    hidden_dim: int = setting(512, "width of the generator", ge=1)
    server_steps: int | None = setting(
        None, "steps of the generator per round; unset: 100 (htfllib) or 50", ge=0
    )
    server_lr: float | None = setting(
        None, "step of the generator (Adam); unset: 0.001 (htfllib) or 0.0003", gt=0
    )
    server_batch: int = setting(32, "generated features per step", ge=1)
    diversity: float = setting(1.0, "weight of the authors' diversity term", ge=0)
    wait: bool = setting(True, "hold a generator back that has not learned yet")
    weight: kit.Weighting = setting(
        "samples", "how clients count in the mean of heads: by training samples, or all alike"
    )

    @property
    def original(self) -> bool:
        """Return whether the authors' losses are used."""
        return self.variant == "original"

    @property
    def strength(self) -> float:
        """Return the weight of the generated features in local training."""
        return (10.0 if self.original else 1.0) if self.generator_weight is None else self.generator_weight

    def init_server(self, ctx: Context) -> Server:
        """Draw one head for all and a random generator."""
        generator = ctx.module(
            "generator", lambda: self._generator(ctx.task.num_classes, ctx.task.feature_dim)
        )
        return Server(kit.initial_head(ctx.task), generator.eval(), False, {})

    def _generator(self, classes: int, features: int | None) -> Generator:
        return Generator(classes, self.noise_dim, self.hidden_dim, features or 0)

    def broadcast(self, state: Server, client: ClientInfo, ctx: Context) -> HeadAndGenerator:
        """θ; the generator with the label distribution; and a request for counts not yet received."""
        if self.strength == 0:
            return HeadAndGenerator(state.head)
        counts_wanted = None if client.name in state.counts else 1
        if self.wait and not state.trained:
            return HeadAndGenerator(state.head, counts_wanted=counts_wanted)
        return HeadAndGenerator(
            state.head, kit.tensors_of(state.generator), self.draw(state, ctx), counts_wanted
        )

    def draw(self, state: Server, ctx: Context) -> Tensor:
        """Return how often each label is generated: as often as clients have it, or once if a client has it twice."""
        if not state.counts:
            return torch.ones(ctx.task.num_classes, dtype=torch.int64, device=ctx.task.device)
        counts = torch.stack(list(state.counts.values()))
        return (counts.amax(dim=0) > 1).to(torch.int64) if self.original else counts.sum(dim=0)

    def client(self, me: Client, message: HeadAndGenerator) -> HeadAndCounts:
        """Replace the head, train on own data and on generated features, send the head."""
        kit.load_tensors(me.model.head, message.head)
        if message.generator is None or message.draw is None or not bool(message.draw.any()):
            me.fit()
        else:
            self._fit(me, message.generator, message.draw)
        counts = None
        if message.counts_wanted is not None:
            counts = torch.bincount(me.train.labels, minlength=me.task.num_classes).to(me.task.device)
        return HeadAndCounts(kit.tensors_of(me.model.head), counts)

    def _fit(self, me: Client, generator: Tensors, draw: Tensor) -> None:
        with torch.device("meta"):  # only its form is needed: the weights were received
            shape = self._generator(me.task.num_classes, me.model.feature_dim).eval()
        labels_rng, noise_rng = me.rng("labels"), me.rng("noise")

        def make(labels: Tensor) -> Tensor:
            noise = _noise(labels, self.noise_dim, me.task.dtype, noise_rng)
            features: Tensor = functional_call(shape, generator, (labels, noise))
            return features.detach()

        decay = 0.98 ** (me.round - 1) if self.original else 1.0

        def loss(model: ClientModel, x: Tensor, y: Tensor) -> kit.LossParts:
            scores, labels = model(x), _labels(draw, me.batch_size(), labels_rng)
            extra = F.cross_entropy(model.head(make(labels)), labels)
            if self.original:
                extra = extra + kit.distillation(model.head(make(y)), scores)
            label_loss = F.cross_entropy(scores, y)
            return kit.LossParts(label_loss + self.strength * decay * extra, label_loss)

        me.fit(loss)

    def server(self, state: Server, updates: Sequence[Update[HeadAndCounts]], ctx: Context) -> Server:
        """Train the generator under the received heads, then average them."""
        new = {u.client.name: u.payload.counts for u in updates if u.payload.counts is not None}
        heads = kit.screened_tensors(ctx, state.head, updates, "head")
        head = kit.average(ctx, state.head, updates, "head", by=self.weight)
        state = Server(head, state.generator, state.trained, {**state.counts, **new})
        if self.strength and state.counts and bool(self.draw(state, ctx).any()):
            self._train(state, updates, heads, ctx)
            state.trained = True
        return state

    def _train(
        self,
        state: Server,
        updates: Sequence[Update[HeadAndCounts]],
        heads: Sequence[Tensors | None],
        ctx: Context,
    ) -> None:
        steps = (50 if self.original else 100) if self.server_steps is None else self.server_steps
        rate = (3e-4 if self.original else 1e-3) if self.server_lr is None else self.server_lr
        optimizer = kit.adam(state.generator.parameters(), rate)
        draw, labels_rng, noise_rng = self.draw(state, ctx), ctx.rng("labels"), ctx.rng("noise")
        shares = label_shares(state, updates)
        state.generator.train(self.server_batch > 1)
        for _ in range(kit.server_steps(ctx, updates, steps)):
            labels = _labels(draw, self.server_batch, labels_rng)
            noise = _noise(labels, self.noise_dim, ctx.task.dtype, noise_rng)
            generated = state.generator(labels, noise)
            if self.original:
                loss = self.diversity * diversity(generated, noise)
                for own, share in zip(heads, shares, strict=True):
                    if own is not None:
                        each = F.cross_entropy(apply(own, generated), labels, reduction="none")
                        loss = loss + (share[labels] * each).mean()
            else:  # linear heads: Σ ω_k head_k(z) is the averaged head of z
                loss = F.cross_entropy(apply(state.head, generated), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        state.generator.eval()

    def predict(self, me: Client, message: HeadAndGenerator | None) -> Predictor:
        """Return the own extractor with the trained head, or with the averaged one just received."""
        return me.model if message is None else kit.predictor_with_head(me, message.head)


def label_shares(state: Server, updates: Sequence[Update[HeadAndCounts]]) -> Tensor:
    """Return w_{k,c}: which part of the participants' samples of class c client k holds, `[m, C]`."""
    none = torch.zeros_like(next(iter(state.counts.values())))
    counts = torch.stack([state.counts.get(update.client.name, none) for update in updates])
    dtype = next(iter(state.head.values())).dtype
    return counts.to(dtype) / counts.sum(dim=0).clamp(min=1)


def diversity(made: Tensor, noise: Tensor) -> Tensor:
    """Return exp(−mean over pairs of mean|Δfeatures| · mean(Δnoise²)): small where other noise makes other features."""
    distances = (made[:, None] - made[None]).abs().mean(dim=2)
    return torch.exp(-(distances * (noise[:, None] - noise[None]).square().mean(dim=2)).mean())


def apply(head: Tensors, features: Tensor) -> Tensor:
    """Return class scores of features under a linear head."""
    return F.linear(features, head["weight"], head.get("bias"))


def _labels(draw: Tensor, size: int, rng: torch.Generator) -> Tensor:
    return torch.multinomial(draw.cpu().double(), size, replacement=True, generator=rng).to(draw.device)


def _noise(labels: Tensor, width: int, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    return torch.rand(len(labels), width, generator=rng, dtype=dtype).to(labels.device)
