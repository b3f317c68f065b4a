"""FedAvg (McMahan et al., AISTATS 2017): average the weights, in one of three ways of sharing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch.func import functional_call

from potluck.core.client import Client
from potluck.core.method import Method, Need, PaperAccounting, Predictor, Update
from potluck.core.sharing import (
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
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import load_tensors, tensors_of


@dataclass
class FedAvg(Method[Groups, Weights, Weights]):
    """Clients train copies of the server's weights; the server takes their mean.

    `aggregate`: `full` (one architecture for all), `same_arch` (a mean inside each architecture group) or
    `layerwise` (per tensor name, over whoever owns it). `buffers` averages BatchNorm statistics as well.
    """

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "average of the weights: full, inside architecture groups, or layer by layer"

    aggregate: Sharing = "same_arch"
    weight: Weighting = "samples"
    buffers: bool = True

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
        return average_groups(state, updates, [update.payload.tensors for update in updates], self.weight)

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
