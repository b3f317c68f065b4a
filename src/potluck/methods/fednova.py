"""FedNova (Wang et al., NeurIPS 2020): average directions, not distances, so that no client counts by its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from potluck.core.client import Client
from potluck.core.method import Method, Need, PaperAccounting, Predictor, Update
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Like, Range
from potluck.core.sharing import (
    SHARING_NEEDS,
    Groups,
    Sharing,
    Weighting,
    Weights,
    average_groups,
    initial_groups,
    learned_numbers,
    slice_for,
    zero_groups,
)
from potluck.core.task import ClientInfo, Context
from potluck.core.toolkit import load_tensors, tensors_of
from potluck.methods.fedavg import global_predictor


@dataclass(frozen=True)
class Direction(Payload):
    """Client to server: d_k = (w - w_k)/a_k and a_k; BatchNorm's statistics travel as they are."""

    direction: Annotated[Tensors, Like("model", subset=True)]
    steps: Annotated[float, Range(0)]
    statistics: Annotated[Tensors, Like("model", subset=True)]


@dataclass
class FedNova(Method[Groups, Weights, Direction]):
    """Clients send the mean direction of their steps; the server goes the mean distance along the mean of them.

    a_k is the number of local steps, or with momentum the number of times that a steady gradient enters the
    weights. `weight` gives p_k: by samples (the paper) or uniform. Statistics are averaged if `buffers`.
    """

    name: ClassVar[str] = "fednova"
    summary: ClassVar[str] = "FedAvg of directions, normalised by each client's number of steps"

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

    def client(self, me: Client, message: Weights) -> Direction:
        """τ_k local steps, then the distance gone divided by a_k."""
        load_tensors(me.model, message.tensors)
        steps = me.training.effective_steps(me.fit().steps)
        after = tensors_of(me.model, buffers=self.buffers)
        learned = dict(me.model.named_parameters())
        direction = {name: (message.tensors[name] - after[name]) / (steps or 1.0) for name in learned}
        statistics = {name: tensor for name, tensor in after.items() if name not in learned}
        return Direction(direction, steps, statistics)

    def server(self, state: Groups, updates: Sequence[Update[Direction]], ctx: Context) -> Groups:
        """w ← w - (Σ p_k a_k) · (Σ p_k d_k), with p_k over the owners of each tensor; τ_k = 0 is ignored."""
        moved = [update for update in updates if update.payload.steps > 0]
        directions = [update.payload.direction for update in moved]
        steps = [
            {
                name: tensor.new_tensor(update.payload.steps)
                for name, tensor in update.payload.direction.items()
            }
            for update in moved
        ]
        # Statistics have no direction: they are averaged in place, and what was learned is moved below.
        result = average_groups(state, moved, [update.payload.statistics for update in moved], self.weight)
        mean = average_groups(zero_groups(state), moved, directions, self.weight)
        distance = average_groups(zero_groups(state), moved, steps, self.weight)
        return {
            key: {name: tensor - distance[key][name] * mean[key][name] for name, tensor in group.items()}
            for key, group in result.items()
        }

    def predict(self, me: Client, message: Weights | None) -> Predictor:
        """The trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.tensors)

    def predict_server(self, state: Groups, ctx: Context) -> Predictor | None:
        """The shared weights, where one set serves everybody."""
        return global_predictor(state, ctx)

    def paper_accounting(self, down: Weights, up: Direction) -> PaperAccounting:
        """The learned parameters and a_k."""
        note = "BatchNorm statistics not counted (FedIN, Table 6)"
        return PaperAccounting(learned_numbers(up.direction) + 1, learned_numbers(down.tensors), note)
