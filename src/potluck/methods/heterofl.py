"""HeteroFL (Diao, Ding and Tarokh, ICLR 2021): narrow clients train the leading corner of a wide model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core import (
    Architecture,
    Client,
    ClientInfo,
    Context,
    Labels,
    Like,
    Method,
    Need,
    PaperAccounting,
    Payload,
    PayloadError,
    PotluckError,
    Predictor,
    Task,
    Tensors,
    Update,
    cross_entropy_loss,
    load_tensors,
    norms_at_rest,
    outputs,
    setting,
    tensors_of,
    with_statistics,
)
from potluck.kit import Composed, is_statistic, learned_numbers, slicing


@dataclass(frozen=True)
class Slice(Payload):
    """Either way: a slice of the wide model; upwards also the classes whose output rows were trained.

    `statistics` are means and variances for norms that keep none: of the client's data, or of all for a test.
    """

    tensors: Annotated[Tensors, Like("any model")]
    classes: Annotated[Tensor, Labels()] | None = None
    statistics: Tensors | None = None

    def check(self, task: Task, client: ClientInfo) -> None:
        """Statistics belong to layers of the slice, one number per channel, variances not below 0."""
        for name, tensor in (self.statistics or {}).items():
            layer = self.tensors.get(f"{name.rpartition('.')[0]}.weight")
            if layer is None or not is_statistic(name) or tensor.shape != layer.shape:
                raise PayloadError(f"Slice.statistics.{name} belongs to no norm of the slice.")
            if name.endswith("running_var") and bool((tensor < 0).any()):
                raise PayloadError(f"Slice.statistics.{name} is a variance below 0.")


@dataclass
class Widest:
    """Server state: the widest model, and statistics of its norms gathered over clients."""

    weights: Tensors
    statistics: Tensors


@dataclass
class HeteroFL(Method[Widest, Slice, Slice]):
    """The server holds the widest model; each client gets, trains and returns a slice of it.

    Tests are of the client's own width. Norms that keep no statistics take those of the client's training data; on a
    shared test set, and for the server's model, they take the mean of what the clients sent of theirs.
    """

    name: ClassVar[str] = "heterofl"
    summary: ClassVar[str] = "width-nested models: each client trains the leading corner of the widest"
    averages: ClassVar[str] = "every scalar of the wide model"
    compares: ClassVar[bool] = False
    needs: ClassVar[frozenset[Need]] = frozenset({Need.NESTED_WIDTH, Need.LINEAR_HEADS})

    sees_latest: ClassVar[bool] = True

    rates: Literal["fix", "dynamic"] = setting(
        "fix", "how wide a client's slice is: as its own model, or drawn anew each round among all widths"
    )
    mask: bool = setting(
        True, "leave classes that a client lacks out of its loss and of the mean of output rows"
    )
    mask_tests: bool = setting(False, "leave them out of its tests as well (the paper's local score)")
    gather: bool = setting(True, "clients send statistics of norms that keep none, for tests on a shared set")

    def window(self, ctx: Context, staleness: int = 0) -> slicing.Window:
        """Which indices a slice sent `staleness` server steps ago keeps: the first ones."""
        return slicing.corner

    def init_server(self, ctx: Context) -> Widest:
        """The widest model's first weights."""
        widths = ctx.task.architectures.values()
        if self.rates == "dynamic" and (fixed := [a.name for a in widths if a.build is None]):
            raise PotluckError(
                f"method.rates 'dynamic' needs models that every client can build at any width, "
                f"but {fixed[0]!r} has no builder; use 'fix'."
            )
        wide = slicing.widest(ctx.task)
        return Widest({name: wide.initial[name].clone() for name in wide.shapes}, {})

    def broadcast(self, state: Widest, client: ClientInfo, ctx: Context) -> Slice:
        """The slice of the client's width, or to train on one drawn for it; to a test go statistics as well."""
        architecture = ctx.task.architectures[client.architecture]
        if self.rates == "dynamic" and not ctx.testing:
            widths = [ctx.task.architectures[name] for name in sorted(ctx.task.architectures)]
            draw = torch.randint(len(widths), (), generator=ctx.rng(f"width of {client.index}"))
            architecture = widths[int(draw)]
        tensors = slicing.take(state.weights, architecture.shapes, self.window(ctx))
        if not ctx.testing or not state.statistics:
            return Slice(tensors)
        shapes = {name: architecture.shapes[_norm_of(name)] for name in state.statistics}
        return Slice(tensors, statistics=slicing.take(state.statistics, shapes, self.window(ctx)))

    def client(self, me: Client, message: Slice) -> Slice:
        """Train the slice on the masked cross-entropy."""
        architecture = _architecture(me, message.tensors)
        network = _network(me, architecture)
        load_tensors(network, message.tensors)
        classes = me.train.classes().to(me.task.device)
        if self.mask:
            present = _present(classes, me.task.num_classes)
            me.fit(masked_loss, present, model=network, name=architecture.name)
        else:
            me.fit(cross_entropy_loss, model=network, name=architecture.name)
        me.private["width"] = architecture.name
        statistics = _statistics(with_statistics(network, _batches(me)), network) if self.gather else None
        return Slice(tensors_of(network), classes if self.mask else None, statistics or None)

    def server(self, state: Widest, updates: Sequence[Update[Slice]], ctx: Context) -> Widest:
        """Every scalar: the mean over the clients that hold it; output rows: over those that have the class."""
        blank = {
            name: torch.zeros_like(state.weights[_norm_of(name)])
            for update in updates
            for name in update.payload.statistics or {}
        }
        gathered = {**blank, **state.statistics}
        mean = slicing.SliceMean(ctx, state.weights, updates)
        known = slicing.SliceMean(replace(ctx, cohort=0), gathered, updates)  # the mean of the latest
        for update in updates:
            window, classes = self.window(ctx, update.staleness), update.payload.classes
            sent = {} if update.sent is None else update.sent.tensors
            for name, tensor in update.payload.tensors.items():
                rows = slicing.indices(tuple(tensor.shape), tuple(state.weights[name].shape), window)
                base = sent.get(name)
                if classes is not None and name.startswith("head."):
                    rows[0], tensor = classes.cpu(), tensor[classes]
                    base = None if base is None else base[classes]
                mean.add(name, tensor, rows, base, update.weight)
            for name, tensor in (update.payload.statistics or {}).items():
                rows = slicing.indices(tuple(tensor.shape), tuple(gathered[name].shape), window)
                known.add(name, tensor, rows, None, update.weight)
        return Widest(mean.result(), known.result())

    def predict(self, me: Client, message: Slice | None) -> Predictor:
        """The slice as trained, or as just received, with statistics of the client's own training data."""
        if message is None:
            trained = me.private.get("width", me.info.architecture)
            network = _network(me, me.task.architectures[trained])
        else:
            network = _spare(me, _architecture(me, message.tensors))
            load_tensors(network, message.tensors)
        if me.on_shared_test and message is not None and message.statistics:
            measured = _carrying(network, message.statistics)
        else:
            measured = with_statistics(network, _batches(me))
        if not self.mask_tests:
            return measured
        present = _present(me.train.classes().to(me.task.device), me.task.num_classes)
        return Masked({"model": measured}, {"present": present})

    def predict_server(self, state: Widest, ctx: Context) -> Predictor | None:
        """The widest model, its norms with gathered statistics, or those of public data or of each test batch."""
        build = slicing.widest(ctx.task).build
        if build is None:
            return None
        model = build().to(device=ctx.task.device, dtype=ctx.task.dtype).eval()
        load_tensors(model, state.weights)
        if state.statistics:
            return _carrying(model, state.statistics)
        if ctx.task.public is not None:
            pieces = outputs(lambda x: x, ctx.task.public, ctx.task)
            return with_statistics(model, (x for x, _ in pieces if len(x) > 1))

        def predict(x: Tensor) -> Tensor:
            with norms_at_rest(*([model] if len(x) == 1 else [])):
                scores: Tensor = model(x)
            return scores

        return predict

    def paper_accounting(self, down: Slice, up: Slice) -> PaperAccounting:
        """Papers count the slice alone."""
        note = "class ids and BatchNorm statistics not counted"
        return PaperAccounting(learned_numbers(up.tensors), learned_numbers(down.tensors), note)


class Masked(Composed):
    """The paper's "Local" score: classes that the client does not have score 0."""

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.models["model"](x).masked_fill(~self.tensor("present"), 0.0)
        return scores


def _norm_of(statistic: str) -> str:
    """The layer's weight that a statistic belongs to."""
    return f"{statistic.rpartition('.')[0]}.weight"


def _batches(me: Client) -> Iterator[Tensor]:
    """The client's training inputs in batches that norms can measure."""
    return (x for x, _ in me.outputs(lambda x: x) if len(x) > 1)


def _statistics(measured: nn.Module, plain: nn.Module) -> Tensors:
    """The statistics that a network has only since they were measured."""
    known = plain.state_dict()
    return {
        name: t.clone()
        for name, t in measured.state_dict().items()
        if is_statistic(name) and name not in known
    }


def _carrying(network: nn.Module, statistics: Tensors) -> nn.Module:
    """The network with these statistics in its norms, in eval mode."""
    model = with_statistics(network, ())
    load_tensors(model, statistics)
    return model


def masked_loss(model: nn.Module, x: Tensor, y: Tensor, present: Tensor) -> Tensor:
    """Cross-entropy with the scores of absent classes at 0, so that their output rows get no gradient."""
    return F.cross_entropy(model(x).masked_fill(~present, 0.0), y)


def _present(classes: Tensor, num_classes: int) -> Tensor:
    present = torch.zeros(num_classes, dtype=torch.bool, device=classes.device)
    present[classes] = True
    return present


def _architecture(me: Client, tensors: Tensors) -> Architecture:
    """The architecture that these tensors are of; a client's own first."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    own = me.task.architectures[me.info.architecture]
    return next(a for a in (own, *me.task.architectures.values()) if a.shapes == shapes)


def _network(me: Client, architecture: Architecture) -> nn.Module:
    """The client's own model, or its network of another width, kept from job to job."""
    if architecture.name == me.info.architecture:
        return me.model
    assert architecture.build is not None
    return me.module(f"width {architecture.name}", architecture.build)


def _spare(me: Client, architecture: Architecture) -> nn.Module:
    """A network of an architecture that is not the client's to keep."""
    if architecture.name == me.info.architecture:
        return copy.deepcopy(me.model)
    assert architecture.build is not None
    return architecture.build().to(device=me.task.device, dtype=me.task.dtype)
