"""HeteroFL (Diao, Ding and Tarokh, ICLR 2021): narrow clients train the leading corner of a wide model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core import slicing
from potluck.core.client import Client
from potluck.core.composite import Composite
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Need, PaperAccounting, Predictor, Update
from potluck.core.norm import norms_at_rest, with_statistics
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Labels, Like
from potluck.core.sharing import learned_numbers
from potluck.core.task import Architecture, ClientInfo, Context
from potluck.core.toolkit import cross_entropy_loss, load_tensors, outputs, tensors_of


@dataclass(frozen=True)
class Slice(Payload):
    """Either way: a slice of the wide model; upwards also the classes whose output rows were trained."""

    tensors: Annotated[Tensors, Like("any model")]
    classes: Annotated[Tensor, Labels()] | None = None


@dataclass
class HeteroFL(Method[Tensors, Slice, Slice]):
    """The server holds the widest model; each client gets, trains and returns a slice of it.

    `rates`: `fix`, a client's own model says how wide its slice is; `dynamic`, every client's width is drawn
    anew each round, evenly among the widths of the federation. `mask` sets the scores of classes that a client
    does not have to 0 in its loss and averages output rows over clients that have the class; `mask_tests` does
    the former in its tests as well (the paper's "Local" score).
    """

    name: ClassVar[str] = "heterofl"
    summary: ClassVar[str] = "width-nested models: each client trains the leading corner of the widest"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.NESTED_WIDTH, Need.LINEAR_HEADS})

    rates: Literal["fix", "dynamic"] = "fix"
    mask: bool = True
    mask_tests: bool = False

    def window(self, ctx: Context, staleness: int = 0) -> slicing.Window:
        """Which indices a slice sent `staleness` server steps ago keeps: the first ones."""
        return slicing.corner

    def init_server(self, ctx: Context) -> Tensors:
        """The widest model's first weights."""
        widths = ctx.task.architectures.values()
        if self.rates == "dynamic" and (fixed := [a.name for a in widths if a.build is None]):
            raise PotluckError(
                f"method.rates 'dynamic' needs models that every client can build at any width, "
                f"but {fixed[0]!r} has no builder; use 'fix'."
            )
        wide = slicing.widest(ctx.task)
        return {name: wide.initial[name].clone() for name in wide.shapes}

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> Slice:
        """The slice of the client's width, or of one drawn for it."""
        architecture = ctx.task.architectures[client.architecture]
        if self.rates == "dynamic":
            widths = [ctx.task.architectures[name] for name in sorted(ctx.task.architectures)]
            draw = torch.randint(len(widths), (), generator=ctx.rng(f"width of {client.index}"))
            architecture = widths[int(draw)]
        return Slice(slicing.take(state, architecture.shapes, self.window(ctx)))

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
        return Slice(tensors_of(network), classes if self.mask else None)

    def server(self, state: Tensors, updates: Sequence[Update[Slice]], ctx: Context) -> Tensors:
        """Every scalar: the mean over the clients that hold it; output rows: over those that have the class."""
        mean = slicing.SliceMean(state)
        for update in updates:
            window, classes = self.window(ctx, update.staleness), update.payload.classes
            for name, tensor in update.payload.tensors.items():
                rows = slicing.indices(tuple(tensor.shape), tuple(state[name].shape), window)
                if classes is not None and name.startswith("head."):
                    rows[0], tensor = classes.cpu(), tensor[classes]
                mean.add(name, tensor, rows)
        return mean.result()

    def predict(self, me: Client, message: Slice | None) -> Predictor:
        """The slice as trained, or as just received, with statistics of the client's own training data."""
        if message is None:
            trained = me.private.get("width", me.info.architecture)
            network = _network(me, me.task.architectures[trained])
        else:
            network = _spare(me, _architecture(me, message.tensors))
            load_tensors(network, message.tensors)
        batches = (x for x, _ in me.outputs(lambda x: x) if len(x) > 1)
        measured = with_statistics(network, batches)
        if not self.mask_tests:
            return measured
        present = _present(me.train.classes().to(me.task.device), me.task.num_classes)
        return Composite("masked", {"model": measured}, {"present": present})

    def predict_server(self, state: Tensors, ctx: Context) -> Predictor | None:
        """The widest model. Its norms take statistics from public data, or else from each test batch."""
        build = slicing.widest(ctx.task).build
        if build is None:
            return None
        model = build().to(device=ctx.task.device, dtype=ctx.task.dtype).eval()
        load_tensors(model, state)
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
