"""FedGen (Zhu et al., ICML 2021), header form: a generator of features carries what the headers know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from potluck.core.client import Client
from potluck.core.header import average_headers, initial_header, with_header
from potluck.core.method import Method, Need, Predictor, Update
from potluck.core.model import ClientModel
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Counts, Like, Range, Shape, Whole
from potluck.core.sharing import Weighting
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import distillation, load_tensors, tensors_of


@dataclass(frozen=True)
class HeaderAndGenerator(Payload):
    """Server to client: the averaged header; once it has learned, the generator and how to draw labels."""

    header: Annotated[Tensors, Like("head")]
    generator: Tensors | None = None
    draw: Annotated[Tensor, Shape("classes"), Whole(), Range(0)] | None = None
    counts_wanted: int | None = None


@dataclass(frozen=True)
class HeaderAndCounts(Payload):
    """Client to server: its header and, once, its samples per class (a disclosure: see the docs)."""

    header: Annotated[Tensors, Like("head")]
    counts: Annotated[Tensor, Shape("classes"), Counts()] | None = None


class Generator(nn.Module):
    """Features for given labels out of uniform noise."""

    def __init__(self, classes: int, noise: int, hidden: int, features: int) -> None:
        super().__init__()
        self.classes = classes
        self.net = nn.Sequential(
            nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)
        )

    def forward(self, labels: Tensor, noise: Tensor) -> Tensor:
        """`[batch, features]` for a batch of labels and as many rows of noise."""
        made: Tensor = self.net(torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], dim=1))
        return made


@dataclass
class Server:
    """Server: the averaged header, the generator and whether it ever learned, label counts per client."""

    header: Tensors
    generator: Generator
    trained: bool
    counts: dict[str, Tensor]


@dataclass
class FedGen(Method[Server, HeaderAndGenerator, HeaderAndCounts]):
    """Headers are averaged; clients also train theirs on features that a server-side generator makes.

    `variant`: `htfllib`, the generator serves the mean of the headers' logits, or `original`, the authors'
    losses: each header by its share of the class, a `diversity` term, and on clients a distillation besides.
    `generator_weight`, `server_steps` and `server_lr` default to the variant's (1, 100, 0.1 or 10, 50, 3e-4);
    weight 0 is LG-FedAvg. `wait` holds an untrained generator back. `weight` is that of the header's mean.
    """

    name: ClassVar[str] = "fedgen"
    summary: ClassVar[str] = "an averaged header, and a generator of features trained on the server"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.FEATURES, Need.EQUAL_FEATURES, Need.EQUAL_HEADS, Need.LINEAR_HEADS}
    )
    own_steps: ClassVar[bool] = True  # the loss draws labels and noise anew in every step

    variant: Literal["htfllib", "original"] = "htfllib"
    generator_weight: float | None = None
    noise_dim: int = 32
    hidden_dim: int = 512
    server_steps: int | None = None
    server_lr: float | None = None
    server_batch: int = 32
    diversity: float = 1.0
    wait: bool = True
    weight: Weighting = "samples"

    @property
    def original(self) -> bool:
        """Whether the authors' losses are used."""
        return self.variant == "original"

    @property
    def strength(self) -> float:
        """The weight of the generated features in local training."""
        return (10.0 if self.original else 1.0) if self.generator_weight is None else self.generator_weight

    def init_server(self, ctx: Context) -> Server:
        """One header for all and a random generator."""
        generator = ctx.module(
            "generator", lambda: self._generator(ctx.task.num_classes, ctx.task.feature_dim)
        )
        return Server(initial_header(ctx.task), generator.eval(), False, {})

    def _generator(self, classes: int, features: int | None) -> Generator:
        return Generator(classes, self.noise_dim, self.hidden_dim, features or 0)

    def broadcast(self, state: Server, client: ClientInfo, ctx: Context) -> HeaderAndGenerator:
        """θ; the generator with the label distribution; and a request for counts not yet received."""
        if self.strength == 0:
            return HeaderAndGenerator(state.header)
        wanted = None if client.name in state.counts else 1
        if self.wait and not state.trained:
            return HeaderAndGenerator(state.header, counts_wanted=wanted)
        return HeaderAndGenerator(state.header, tensors_of(state.generator), self.draw(state, ctx), wanted)

    def draw(self, state: Server, ctx: Context) -> Tensor:
        """How often each label is generated: as often as clients hold it, or all that somebody has twice."""
        if not state.counts:
            return torch.ones(ctx.task.num_classes, dtype=torch.int64, device=ctx.task.device)
        counts = torch.stack(list(state.counts.values()))
        return (counts.amax(dim=0) > 1).to(torch.int64) if self.original else counts.sum(dim=0)

    def client(self, me: Client, message: HeaderAndGenerator) -> HeaderAndCounts:
        """Replace the header, train on own data and on generated features, send the header."""
        load_tensors(me.model.head, message.header)
        if message.generator is None or message.draw is None or not bool(message.draw.any()):
            me.fit()
        else:
            self._fit(me, message.generator, message.draw)
        counts = None
        if message.counts_wanted is not None:
            counts = torch.bincount(me.train.labels, minlength=me.task.num_classes).to(me.task.device)
        return HeaderAndCounts(tensors_of(me.model.head), counts)

    def _fit(self, me: Client, generator: Tensors, draw: Tensor) -> None:
        with torch.device("meta"):  # only its form is needed: the weights were received
            shape = self._generator(me.task.num_classes, me.model.feature_dim).eval()
        labels_rng, noise_rng = me.rng("labels"), me.rng("noise")

        def make(labels: Tensor) -> Tensor:
            noise = _noise(labels, self.noise_dim, me.task.dtype, noise_rng)
            features: Tensor = functional_call(shape, generator, (labels, noise))
            return features.detach()

        decay = 0.98 ** (me.round - 1) if self.original else 1.0

        def loss(model: ClientModel, x: Tensor, y: Tensor) -> Tensor:
            scores, drawn = model(x), _labels(draw, me.batch_size(), labels_rng)
            extra = F.cross_entropy(model.head(make(drawn)), drawn)
            if self.original:
                extra = extra + distillation(model.head(make(y)), scores)
            return F.cross_entropy(scores, y) + self.strength * decay * extra

        me.fit(loss)

    def server(self, state: Server, updates: Sequence[Update[HeaderAndCounts]], ctx: Context) -> Server:
        """Train the generator under the received headers, then average them."""
        new = {u.client.name: u.payload.counts for u in updates if u.payload.counts is not None}
        headers = [update.payload.header for update in updates]
        header = average_headers(state.header, updates, headers, self.weight)
        state = Server(header, state.generator, state.trained, {**state.counts, **new})
        if self.strength and state.counts and bool(self.draw(state, ctx).any()):
            self._train(state, updates, ctx)
            state.trained = True
        return state

    def _train(self, state: Server, updates: Sequence[Update[HeaderAndCounts]], ctx: Context) -> None:
        steps = (50 if self.original else 100) if self.server_steps is None else self.server_steps
        rate = (3e-4 if self.original else 0.1) if self.server_lr is None else self.server_lr
        optimizer = torch.optim.Adam(state.generator.parameters(), rate, fused=True)
        draw, labels_rng, noise_rng = self.draw(state, ctx), ctx.rng("labels"), ctx.rng("noise")
        shares = label_shares(state, updates)
        state.generator.train(self.server_batch > 1)
        for _ in range(steps):
            labels = _labels(draw, self.server_batch, labels_rng)
            noise = _noise(labels, self.noise_dim, ctx.task.dtype, noise_rng)
            made = state.generator(labels, noise)
            if self.original:
                loss = self.diversity * diversity(made, noise)
                for update, share in zip(updates, shares, strict=True):
                    each = F.cross_entropy(apply(update.payload.header, made), labels, reduction="none")
                    loss = loss + (share[labels] * each).mean()
            else:  # linear heads: Σ ω_k head_k(z) is the averaged head of z
                loss = F.cross_entropy(apply(state.header, made), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        state.generator.eval()

    def predict(self, me: Client, message: HeaderAndGenerator | None) -> Predictor:
        """The own extractor with the trained header, or with the averaged one just received."""
        return me.model if message is None else with_header(me, message.header)


def label_shares(state: Server, updates: Sequence[Update[HeaderAndCounts]]) -> Tensor:
    """w_{k,c}: which part of the participants' samples of class c client k holds, `[m, C]`."""
    none = torch.zeros_like(next(iter(state.counts.values())))
    counts = torch.stack([state.counts.get(update.client.name, none) for update in updates])
    dtype = next(iter(state.header.values())).dtype
    return counts.to(dtype) / counts.sum(dim=0).clamp(min=1)


def diversity(made: Tensor, noise: Tensor) -> Tensor:
    """exp(−mean over pairs of mean|Δfeatures| · mean(Δnoise²)): small where other noise makes other features."""
    apart = (made[:, None] - made[None]).abs().mean(dim=2)
    return torch.exp(-(apart * (noise[:, None] - noise[None]).square().mean(dim=2)).mean())


def apply(header: Tensors, features: Tensor) -> Tensor:
    """Class scores of features under a linear header."""
    return F.linear(features, header["weight"], header.get("bias"))


def _labels(draw: Tensor, size: int, rng: torch.Generator) -> Tensor:
    return torch.multinomial(draw.cpu().double(), size, replacement=True, generator=rng).to(draw.device)


def _noise(labels: Tensor, width: int, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    return torch.rand(len(labels), width, generator=rng, dtype=dtype).to(labels.device)
