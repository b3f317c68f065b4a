"""HeteroFL (Diao, Ding and Tarokh, ICLR 2021): narrow clients train the leading corner of a wide model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.method import (
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
    Supports,
    Task,
    Tensors,
    Update,
    kit,
    setting,
)


@dataclass(frozen=True)
class Slice(Payload):
    """Both directions: a slice of the wide model; upwards also the classes whose output rows were trained.

    `statistics` are means and variances for norms that keep none: of the client's data, or of all for a test.
    """

    tensors: Annotated[Tensors, Like("any model")]
    classes: Annotated[Tensor, Labels()] | None = None
    statistics: Tensors | None = None

    def check(self, task: Task, client: ClientInfo) -> None:
        """Require statistics of layers of the slice, one number per channel, variances not below 0."""
        for name, tensor in (self.statistics or {}).items():
            layer = self.tensors.get(f"{name.rpartition('.')[0]}.weight")
            if layer is None or not kit.is_statistic(name) or tensor.shape != layer.shape:
                raise PayloadError(f"Slice.statistics.{name} belongs to no norm of the slice.")
            if name.endswith("running_var") and bool((tensor < 0).any()):
                raise PayloadError(f"Slice.statistics.{name} is a variance below 0.")


@dataclass
class Widest:
    """Server: the widest model, and statistics of its norms gathered over clients."""

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
    needs: ClassVar[frozenset[Need]] = frozenset({Need.NESTED_WIDTH, Need.LINEAR_HEADS})
    supports: ClassVar[Supports] = Supports(
        robust="every scalar of the wide model",
        comparable=False,
        single_answers="it divides each weight by how many clients of its classes sent it",
    )

    rates: Literal["fix", "dynamic"] = setting(
        "fix", "how wide a client's slice is: as its own model, or drawn each round among all widths"
    )
    mask: bool = setting(
        True, "leave classes that a client lacks out of its loss and of the mean of output rows"
    )
    mask_tests: bool = setting(False, "leave them out of its tests as well (the paper's local score)")
    gather: bool = setting(True, "clients send statistics of norms that keep none, for tests on a shared set")

    def window(self, ctx: Context, staleness: int = 0) -> kit.Window:
        """Return which indices a slice sent `staleness` server steps ago has: the first ones."""
        return kit.leading_indices

    def init_server(self, ctx: Context) -> Widest:
        """Start from the widest model's first weights."""
        widths = ctx.task.architectures.values()
        if self.rates == "dynamic" and (fixed := [a.name for a in widths if a.build is None]):
            raise PotluckError(
                f"method.rates 'dynamic' needs models that every client can build at any width, "
                f"but {fixed[0]!r} has no builder; use 'fix'."
            )
        wide = kit.widest_architecture(ctx.task)
        return Widest({name: wide.initial[name].clone() for name in wide.shapes}, {})

    def broadcast(self, state: Widest, client: ClientInfo, ctx: Context) -> Slice:
        """Return the slice of the client's width, or to train on one drawn for it; to a test go statistics as well."""
        architecture = ctx.task.architectures[client.architecture]
        if self.rates == "dynamic" and not ctx.testing:
            widths = [ctx.task.architectures[name] for name in sorted(ctx.task.architectures)]
            draw = torch.randint(len(widths), (), generator=ctx.rng(f"width of {client.index}"))
            architecture = widths[int(draw)]
        tensors = kit.take_slices(state.weights, architecture.shapes, self.window(ctx))
        if not ctx.testing or not state.statistics:
            return Slice(tensors)
        shapes = {name: architecture.shapes[_norm_of(name)] for name in state.statistics}
        return Slice(tensors, statistics=kit.take_slices(state.statistics, shapes, self.window(ctx)))

    def client(self, me: Client, message: Slice) -> Slice:
        """Train the slice on the masked cross-entropy."""
        architecture = _architecture(me, message.tensors)
        network = _network(me, architecture)
        kit.load_tensors(network, message.tensors)
        classes = me.train.classes().to(me.task.device)
        if self.mask:
            present = _present(classes, me.task.num_classes)
            me.fit(masked_loss, present, model=network, name=architecture.name)
        else:
            me.fit(kit.cross_entropy_loss, model=network, name=architecture.name)
        me.private["width"] = architecture.name
        statistics = (
            _statistics(kit.with_batch_norm_statistics(network, _batches(me)), network)
            if self.gather
            else None
        )
        return Slice(kit.tensors_of(network), classes if self.mask else None, statistics or None)

    def server(self, state: Widest, updates: Sequence[Update[Slice]], ctx: Context) -> Widest:
        """Average every scalar over the clients that have it, output rows over those that have the class."""
        blank = {
            name: torch.zeros_like(state.weights[_norm_of(name)])
            for update in updates
            for name in update.payload.statistics or {}
        }
        gathered = {**blank, **state.statistics}
        weights = kit.SliceMean(ctx, state.weights, updates, lambda payload: payload.tensors)
        statistics = kit.SliceMean(
            ctx, gathered, updates, lambda payload: payload.statistics or {}, whole=True
        )
        for update in updates:
            window = self.window(ctx, update.staleness)
            weights.add(update, window, head_rows=update.payload.classes)
            statistics.add(update, window)
        return Widest(weights.result(), statistics.result())

    def predict(self, me: Client, message: Slice | None) -> Predictor:
        """Return the slice as trained, or as just received, with statistics of the client's own training data."""
        if message is None:
            trained = me.private.get("width", me.info.architecture)
            network = _network(me, me.task.architectures[trained])
        else:
            network = _separate_network(me, _architecture(me, message.tensors))
            kit.load_tensors(network, message.tensors)
        if me.on_shared_test and message is not None and message.statistics:
            measured = _with_statistics(network, message.statistics)
        else:
            measured = kit.with_batch_norm_statistics(network, _batches(me))
        if not self.mask_tests:
            return measured
        present = _present(me.train.classes().to(me.task.device), me.task.num_classes)
        return Masked({"model": measured}, {"present": present})

    def predict_server(self, state: Widest, ctx: Context) -> Predictor | None:
        """Return the widest model with gathered statistics in its norms, or those of public data or of each batch."""
        build = kit.widest_architecture(ctx.task).build
        if build is None:
            return None
        model = build().to(device=ctx.task.device, dtype=ctx.task.dtype).eval()
        kit.load_tensors(model, state.weights)
        if state.statistics:
            return _with_statistics(model, state.statistics)
        if ctx.task.public is not None:
            pieces = kit.outputs(lambda x: x, ctx.task.public, ctx.task)
            return kit.with_batch_norm_statistics(model, (x for x, _ in pieces if len(x) > 1))

        def predict(x: Tensor) -> Tensor:
            with kit.batch_norm_in_eval_mode(*([model] if len(x) == 1 else [])):
                scores: Tensor = model(x)
            return scores

        return predict

    def paper_accounting(self, down: Slice, up: Slice) -> PaperAccounting:
        """Count the slice alone, as papers do."""
        note = "class ids and BatchNorm statistics not counted"
        return PaperAccounting(kit.count_parameters(up.tensors), kit.count_parameters(down.tensors), note)


class Masked(kit.CombinedModel):
    """The paper's "Local" score: classes that the client does not have score 0."""

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        scores: Tensor = self.models["model"](x).masked_fill(~self.tensor("present"), 0.0)
        return scores


def _norm_of(statistic: str) -> str:
    """Return the name of the layer's weight that a statistic belongs to."""
    return f"{statistic.rpartition('.')[0]}.weight"


def _batches(me: Client) -> Iterator[Tensor]:
    """Return the client's training inputs in batches of two samples or more."""
    return (x for x, _ in me.outputs(lambda x: x) if len(x) > 1)


def _statistics(measured: nn.Module, plain: nn.Module) -> Tensors:
    """Return the statistics that a measured network has and the plain one does not keep."""
    plain_state = plain.state_dict()
    return {
        name: t.clone()
        for name, t in measured.state_dict().items()
        if kit.is_statistic(name) and name not in plain_state
    }


def _with_statistics(network: nn.Module, statistics: Tensors) -> nn.Module:
    """Return the network with these statistics in its norms, in eval mode."""
    model = kit.with_batch_norm_statistics(network, ())
    kit.load_tensors(model, statistics)
    return model


def masked_loss(model: nn.Module, x: Tensor, y: Tensor, present: Tensor) -> kit.LossParts:
    """Return the cross-entropy with the scores of absent classes at 0, so that their output rows get no gradient."""
    label_loss = F.cross_entropy(model(x).masked_fill(~present, 0.0), y)
    return kit.LossParts(label_loss, label_loss)


def _present(classes: Tensor, num_classes: int) -> Tensor:
    present = torch.zeros(num_classes, dtype=torch.bool, device=classes.device)
    present[classes] = True
    return present


def _architecture(me: Client, tensors: Tensors) -> Architecture:
    """Return the architecture that these tensors are of; a client's own first."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    own = me.task.architectures[me.info.architecture]
    return next(a for a in (own, *me.task.architectures.values()) if a.shapes == shapes)


def _network(me: Client, architecture: Architecture) -> nn.Module:
    """Return the client's own model, or its network of another width, kept from job to job."""
    if architecture.name == me.info.architecture:
        return me.model
    assert architecture.build is not None
    return me.module(f"width {architecture.name}", architecture.build)


def _separate_network(me: Client, architecture: Architecture) -> nn.Module:
    """Return a network of an architecture that the client does not keep."""
    if architecture.name == me.info.architecture:
        return copy.deepcopy(me.model)
    assert architecture.build is not None
    return architecture.build().to(device=me.task.device, dtype=me.task.dtype)
