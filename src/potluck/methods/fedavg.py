"""FedAvg (McMahan et al., AISTATS 2017): average the weights, in one of three ways of sharing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from torch.func import functional_call

from potluck.core import (
    Client,
    ClientInfo,
    Context,
    Method,
    Need,
    PaperAccounting,
    Predictor,
    Update,
    load_tensors,
    setting,
    tensors_of,
)
from potluck.kit import (
    ALL,
    SHARING_NEEDS,
    Groups,
    Sharing,
    Weighting,
    Weights,
    average_groups,
    initial_groups,
    learned_numbers,
    slice_for,
)


@dataclass
class FedAvg(Method[Groups, Weights, Weights]):
    """Clients train copies of the server's weights; the server takes their mean."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "average of the weights: full, inside architecture groups, or layer by layer"
    guards_rows: ClassVar[bool] = True
    averages: ClassVar[str] = "the weights"
    sees_latest: ClassVar[bool] = True

    aggregate: Sharing = setting(
        "same_arch",
        "whose weights are averaged: all (full, one architecture), each architecture's own (same_arch), or tensor by "
        "tensor over whoever has one of that name (layerwise)",
    )
    weight: Weighting = setting("samples", "how clients count in the mean: by training samples, or all alike")
    buffers: bool = setting(True, "average BatchNorm statistics as well")

    def requires(self) -> frozenset[Need]:
        """What has to be alike depends on the way of sharing."""
        return SHARING_NEEDS[self.aggregate]

    def init_server(self, ctx: Context) -> Groups:
        """One common initialisation per group."""
        return initial_groups(ctx.task, self.aggregate, buffers=self.buffers)

    def broadcast(self, state: Groups, client: ClientInfo, ctx: Context) -> Weights:
        """The client's slice of the weights."""
        return Weights(slice_for(state, client, ctx.task))

    def client(self, me: Client, message: Weights) -> Weights:
        """Start from the received weights, train, send the result."""
        load_tensors(me.model, message.tensors)
        me.fit()
        return Weights(tensors_of(me.model, buffers=self.buffers))

    def server(self, state: Groups, updates: Sequence[Update[Weights]], ctx: Context) -> Groups:
        """w ← Σ n_k/n · w_k over the participants that own each tensor."""
        return average_groups(ctx, state, updates, attrgetter("tensors"), self.weight)

    def predict(self, me: Client, message: Weights | None) -> Predictor:
        """The trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.tensors)

    def predict_server(self, state: Groups, ctx: Context) -> Predictor | None:
        """The largest architecture with the shared weights, where one set serves everybody."""
        return global_predictor(state, ctx)

    def paper_accounting(self, down: Weights, up: Weights) -> PaperAccounting:
        """FedIN's Table 6 counts learned parameters, in one direction."""
        note = "BatchNorm statistics not counted (FedIN, Table 6)"
        return PaperAccounting(learned_numbers(up.tensors), learned_numbers(down.tensors), note)


def global_predictor(state: Groups, ctx: Context) -> Predictor | None:
    """The server's weights as a model, if they form a single one that the server can build."""
    groups = list(state)
    largest = max(ctx.task.architectures.values(), key=lambda a: len(a.initial))
    if len(groups) > 1 or (groups != [ALL] and len(ctx.task.architectures) > 1) or largest.build is None:
        return None
    model = largest.build().to(device=ctx.task.device, dtype=ctx.task.dtype).eval()
    weights = {name: tensor for name, tensor in state[groups[0]].items() if name in largest.initial}
    return lambda x: functional_call(model, weights, (x,))
