"""FedCGS (Guan, Zhou and Gu, AAAI 2025): one message per client, a Gaussian classifier from sums of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from potluck.method import (
    Client,
    ClientInfo,
    Context,
    Counts,
    Integers,
    Like,
    Method,
    Need,
    Payload,
    PayloadError,
    PotluckError,
    Predictor,
    SecureSums,
    Shape,
    Supports,
    Task,
    Tensors,
    Training,
    Update,
    kit,
    setting,
)


@dataclass(frozen=True)
class Statistics(Payload):
    """Per class the number of samples and the sum of features, and the sum of products of two features.

    `products` is the upper triangle of Σ x xᵀ, row by row. Sums of several clients add up; nothing of a class is left
    out, so every client's message has the same form. All is None where the server has a client's sums already.
    """

    counts: Annotated[Tensor, Shape("classes"), Counts()] | None = None
    sums: Annotated[Tensor, Shape("classes", "width")] | None = None
    products: Annotated[Tensor, Shape("pairs")] | None = None

    def check(self, task: Task, client: ClientInfo) -> None:
        """Check the sizes against the client's architecture, and that all is given or nothing."""
        present = [value for value in (self.counts, self.sums, self.products) if value is not None]
        if len(present) not in (0, 3):
            raise PayloadError("Statistics must hold counts, sums and products, or nothing.")
        width = task.architectures[client.architecture].feature_dim
        if self.sums is not None and self.sums.shape[1] != width:
            raise PayloadError(f"Statistics.sums has {self.sums.shape[1]} features, expected {width}.")
        if self.products is not None and len(self.products) != width * (width + 1) // 2:
            raise PayloadError(
                f"Statistics.products must hold the {width * (width + 1) // 2} pairs of features."
            )


@dataclass(frozen=True)
class Classifier(Payload):
    """The extractor's trained tensors until a client has answered once; the classifier as soon as there is one."""

    extractor: Annotated[Tensors, Like("model", subset=True)]
    send: int
    counts: Annotated[Tensor, Shape("classes"), Integers()] | None = None
    head: Annotated[Tensors, Like("head")] | None = None


@dataclass
class Sums:
    """Server: the sums of each architecture, the classifiers made of them, and the clients that are in them."""

    groups: dict[str, Tensors]
    heads: dict[str, Tensors]
    received: dict[str, int]


@dataclass
class FedCGS(Method[Sums, Classifier, Statistics]):
    """No gradient steps: clients of one architecture have one extractor, and their sums give one classifier."""

    name: ClassVar[str] = "fedcgs"
    summary: ClassVar[str] = (
        "one message per client: a Gaussian classifier from class sums and products of features"
    )
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.LINEAR_HEADS})
    supports: ClassVar[Supports] = Supports(sums=SecureSums(others="total", per="architecture"))

    shrinkage: float | None = setting(
        None, "share of the average variance in the covariance; unset: estimated from the sums", ge=0, le=1
    )
    prior: Literal["own", "all", "uniform"] = setting(
        "own",
        "class frequencies of the classifier: the client's own, those of all clients, or all classes alike",
    )

    def init_server(self, ctx: Context) -> Sums:
        """Start without sums."""
        for architecture in ctx.task.architectures.values():
            if "bias" not in architecture.head:
                raise PotluckError(
                    f"FedCGS needs a bias in the head, and that of model {architecture.name!r} has none; "
                    "choose another model."
                )
        return Sums({}, {}, {})

    def broadcast(self, state: Sums, client: ClientInfo, ctx: Context) -> Classifier:
        """Send the extractor's common tensors to new clients, and the classifier of the client's architecture."""
        new = client.name not in state.received
        extractor = extractor_of(ctx.task, client) if new else {}
        head, group = state.heads.get(client.architecture), state.groups.get(client.architecture)
        counts = None if group is None else group["counts"].round().to(torch.int64)
        return Classifier(extractor, int(new), counts, head)

    def client(self, me: Client, message: Classifier) -> Statistics:
        """Take the classifier, or make one of the own sums where there is none yet; send the sums once."""
        kit.load_tensors(me.model, message.extractor)
        own = None
        if message.send or message.head is None:
            own = feature_sums(me)
        if message.head is not None and message.counts is not None:
            head, counts = message.head, message.counts
        else:
            assert own is not None
            head, counts = discriminant(own, self.shrinkage, me.task.dtype), own["counts"]
        me.model.head.load_state_dict(self._with_prior(me, head, counts))
        if own is None or not message.send:
            return Statistics()
        return Statistics(
            own["counts"].to(torch.int64), own["sums"].to(me.task.dtype), own["products"].to(me.task.dtype)
        )

    def server(self, state: Sums, updates: Sequence[Update[Statistics]], ctx: Context) -> Sums:
        """Add the sums of clients that are new, and make the classifiers of their architectures."""
        groups, heads, received = dict(state.groups), dict(state.heads), dict(state.received)
        for update in updates:
            sent, name = update.payload, update.client.architecture
            new = [client.name for client in update.clients if client.name not in received]
            if not new or sent.counts is None or sent.sums is None or sent.products is None:
                continue
            parts = {"counts": sent.counts, "sums": sent.sums, "products": sent.products}
            old = groups.get(name)
            groups[name] = {
                key: part.double() if old is None else old[key] + part.double() for key, part in parts.items()
            }
            received |= dict.fromkeys(new, 1)
        for name, group in groups.items():
            if group is not state.groups.get(name) and float(group["counts"].sum()):
                heads[name] = discriminant(group, self.shrinkage, ctx.task.dtype)
        return Sums(groups, heads, received)

    def forget(self, state: Sums, me: Client, ctx: Context) -> Sums | None:
        """Subtract the client's sums, which its data give again, and make its architecture's classifier again."""
        name, kind = me.info.name, me.info.architecture
        received = {client: 1 for client in state.received if client != name}
        if name not in state.received:
            return state
        own = {key: part.to(ctx.task.dtype).double() for key, part in feature_sums(me).items()}
        group = {key: part - own[key] for key, part in state.groups[kind].items()}
        groups, heads = {**state.groups, kind: group}, dict(state.heads)
        heads.pop(kind, None)
        if float(group["counts"].sum()):
            heads[kind] = discriminant(group, self.shrinkage, ctx.task.dtype)
        else:
            del groups[kind]
        return Sums(groups, heads, received)

    def predict(self, me: Client, message: Classifier | None) -> Predictor:
        """Return the client's own model, or one with the classifier just received."""
        if message is None or message.head is None or message.counts is None:
            return me.model
        head = self._with_prior(me, message.head, message.counts)
        return me.predictor(
            {**message.extractor, **{f"head.{name}": tensor for name, tensor in head.items()}}
        )

    def predict_server(self, state: Sums, ctx: Context) -> Predictor | None:
        """Return the common extractor with the classifier, where all clients have one architecture."""
        architecture = next(iter(ctx.task.architectures.values()))
        head = state.heads.get(architecture.name)
        if len(ctx.task.architectures) > 1 or head is None or architecture.build is None:
            return None
        counts = state.groups[architecture.name]["counts"]
        model = architecture.build().to(device=ctx.task.device, dtype=ctx.task.dtype).eval()
        tensors = {f"head.{name}": tensor for name, tensor in with_prior(head, counts).items()}
        return lambda x: functional_call(model, tensors, (x,))

    def workload(self, samples: int, training: Training) -> int:
        """Count one pass over the samples."""
        return samples

    def _with_prior(self, me: Client, head: Tensors, counts: Tensor) -> Tensors:
        if self.prior == "uniform":
            return dict(head)
        if self.prior == "own" and not me.on_shared_test:
            counts = torch.bincount(me.train.labels, minlength=me.task.num_classes)
        return with_prior(head, counts)


def extractor_of(task: Task, client: ClientInfo) -> Tensors:
    """Return the common first tensors of a client's extractor, without those that are frozen."""
    architecture = task.architectures[client.architecture]
    return {name: architecture.initial[name] for name in architecture.shapes if not name.startswith("head.")}


def feature_sums(me: Client) -> Tensors:
    """Return counts N_c, sums Σ x per class and the upper triangle of Σ x xᵀ over a client's training samples."""
    me.model.eval()
    classes, width = me.task.num_classes, me.task.architectures[me.info.architecture].feature_dim
    empty = torch.empty(0, dtype=torch.float64, device=me.task.device)
    counts, sums = empty.new_zeros(classes), empty.new_zeros(classes, width)
    products = empty.new_zeros(width, width)
    for features, labels in me.outputs(me.model.features):
        x = features.double()
        counts += torch.bincount(labels, minlength=classes)
        sums.index_add_(0, labels, x)
        products += x.T @ x
    return {"counts": counts, "sums": sums, "products": products[tuple(torch.triu_indices(width, width))]}


def discriminant(group: Tensors, shrinkage: float | None, dtype: torch.dtype) -> Tensors:
    """Return weights Σ⁻¹μ_c and biases -½ μ_cᵀΣ⁻¹μ_c of the Gaussian classifier, for classes of equal frequency.

    A class without samples has the mean of all.
    """
    counts, sums, products = (group[name].double() for name in ("counts", "sums", "products"))
    total = counts.sum().clamp(min=1)
    overall = sums.sum(0) / total
    means = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], overall)
    covariance, freedom = within_class_covariance(counts, means, products)
    width = len(covariance)
    average = covariance.trace() / width
    share = oas_shrinkage(covariance, freedom) if shrinkage is None else shrinkage
    floor = 1e-6 * float(average) + 1e-12  # so that a share of 0 can be inverted
    diagonal = torch.eye(width, dtype=covariance.dtype, device=covariance.device) * (share * average + floor)
    weight = torch.linalg.solve((1 - share) * covariance + diagonal, means.T).T
    bias = -0.5 * (weight * means).sum(1)
    return {"weight": weight.to(dtype).contiguous(), "bias": bias.to(dtype)}


def within_class_covariance(counts: Tensor, means: Tensor, products: Tensor) -> tuple[Tensor, float]:
    """Return the covariance around class means, Σ x xᵀ - Σ_c N_c μ_c μ_cᵀ over its degrees of freedom, and these."""
    width = means.shape[1]
    upper = torch.zeros(width, width, dtype=products.dtype, device=products.device)
    upper[tuple(torch.triu_indices(width, width))] = products
    scatter = upper + upper.triu(1).T - (means * counts[:, None]).T @ means
    freedom = max(1.0, float(counts.sum()) - float((counts > 0).sum()))
    return scatter / freedom, freedom


def oas_shrinkage(covariance: Tensor, freedom: float) -> float:
    """Return the share of the oracle approximating shrinkage estimator (Chen et al., 2010)."""
    width = len(covariance)
    square, trace = float(covariance.square().sum()), float(covariance.trace())
    numerator = (1 - 2 / width) * square + trace**2
    denominator = (freedom + 1 - 2 / width) * (square - trace**2 / width)
    return 1.0 if denominator <= 0 else min(1.0, numerator / denominator)


def with_prior(head: Tensors, counts: Tensor) -> Tensors:
    """Add the logarithm of class frequencies to the biases; every class counts one sample more."""
    frequencies = (counts.double() + 1) / (counts.double().sum() + len(counts))
    bias = head["bias"].double() + frequencies.log().to(head["bias"].device)
    return {"weight": head["weight"], "bias": bias.to(head["bias"].dtype)}
