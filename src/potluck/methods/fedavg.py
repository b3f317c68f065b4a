"""FedAvg (McMahan et al., AISTATS 2017): average the weights, in one of three ways of sharing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from potluck.method import (
    Client,
    ClientInfo,
    Context,
    Method,
    Need,
    PaperAccounting,
    Predictor,
    SecureSums,
    Supports,
    Update,
    kit,
    setting,
)


@dataclass
class FedAvg(Method[kit.Groups, kit.Weights, kit.Weights]):
    """Clients train copies of the server's weights; the server takes their mean."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "average of the weights: full, inside architecture groups, or layer by layer"
    supports: ClassVar[Supports] = Supports(
        robust="the weights",
        max_share={"weight": "samples"},
        row_privacy=True,
        sums=SecureSums(per="architecture"),
    )

    aggregate: kit.Sharing = setting(
        "same_arch",
        "whose weights are averaged: all (full, one architecture), each architecture's own (same_arch), or tensor by "
        "tensor over the models that have one of that name (layerwise)",
    )
    weight: kit.Weighting = setting(
        "samples", "how clients count in the mean: by training samples, or all alike"
    )
    buffers: bool = setting(True, "average BatchNorm statistics as well")

    def init_server(self, ctx: Context) -> kit.Groups:
        """w⁰: one common initialisation per group."""
        return kit.initial_groups(ctx.task, self.aggregate, buffers=self.buffers)

    def broadcast(self, state: kit.Groups, client: ClientInfo, ctx: Context) -> kit.Weights:
        """w^t, as far as the client's architecture has it."""
        return kit.Weights(kit.tensors_for_client(state, client, ctx.task))

    def client(self, me: Client, message: kit.Weights) -> kit.Weights:
        """Start from the received weights, train, send the result (Alg. 1, ClientUpdate)."""
        kit.load_tensors(me.model, message.tensors)
        me.fit()
        return kit.Weights(kit.tensors_of(me.model, buffers=self.buffers))

    def server(self, state: kit.Groups, updates: Sequence[Update[kit.Weights]], ctx: Context) -> kit.Groups:
        """w^{t+1} ← Σ n_k/n · w_k over the participants that have each tensor."""
        return kit.average_groups(ctx, state, updates, "tensors", by=self.weight)

    def predict(self, me: Client, message: kit.Weights | None) -> Predictor:
        """Return the trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.tensors)

    def predict_server(self, state: kit.Groups, ctx: Context) -> Predictor | None:
        """Return the largest architecture with the shared weights, where all clients share one set."""
        return kit.global_predictor(state, ctx)

    def requires(self) -> frozenset[Need]:
        """Return what has to be alike, which depends on the way of sharing."""
        return kit.SHARING_NEEDS[self.aggregate]

    def paper_accounting(self, down: kit.Weights, up: kit.Weights) -> PaperAccounting:
        """Count learned parameters, in one direction (FedIN's Table 6)."""
        note = "BatchNorm statistics not counted (FedIN, Table 6)"
        return PaperAccounting(kit.count_parameters(up.tensors), kit.count_parameters(down.tensors), note)
