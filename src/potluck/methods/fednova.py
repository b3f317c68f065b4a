"""FedNova (Wang et al., NeurIPS 2020): average directions, not distances, so that no client counts by its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from potluck.core import (
    Client,
    ClientInfo,
    Context,
    Like,
    Method,
    Need,
    PaperAccounting,
    Payload,
    PotluckError,
    Predictor,
    Range,
    Tensors,
    Training,
    Update,
    load_tensors,
    setting,
    tensors_of,
)
from potluck.kit import (
    SHARING_NEEDS,
    Groups,
    Portion,
    Sharing,
    Weighting,
    Weights,
    average,
    by_group,
    initial_groups,
    is_statistic,
    learned_numbers,
    mean_change,
    slice_for,
)
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

    a_k is the number of local steps, or with momentum the number of times that a steady gradient enters the weights.
    """

    name: ClassVar[str] = "fednova"
    summary: ClassVar[str] = "FedAvg of directions, normalised by each client's number of steps"
    averages: ClassVar[str] = "the normalised directions"

    sees_latest: ClassVar[bool] = True

    aggregate: Sharing = setting("same_arch", "whose weights are averaged, as for fedavg")
    weight: Weighting = setting("samples", "how clients count: by training samples (p_k), or all alike")
    buffers: bool = setting(True, "average BatchNorm statistics as well")

    def requires(self) -> frozenset[Need]:
        """What has to be alike depends on the way of sharing."""
        return SHARING_NEEDS[self.aggregate]

    def check_training(self, training: Training) -> None:
        """a_k counts from a momentum of zero, which a kept optimiser does not start from."""
        if training.keep_optimizer and training.optimizer == "sgd" and training.momentum:
            raise PotluckError(
                f"training.keep_optimizer = true with training.momentum = {training.momentum} makes FedNova's steps "
                "uncountable; leave one of them out."
            )

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
        if not moved:
            return state
        result: Groups = {}
        for key, (mine, of) in by_group(ctx, state, moved).items():
            # Statistics have no direction: they are averaged in place, and what was learned is moved along the mean.
            kept = average(ctx, state[key], mine, _statistics, self.weight, of)
            mean = mean_change(ctx, state[key], mine, [u.payload.direction for u in mine], self.weight, of)
            distance = mean_change(ctx, state[key], mine, [_steps(u) for u in mine], self.weight, Portion())
            result[key] = {name: tensor - distance[name] * mean[name] for name, tensor in kept.items()}
        return result

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


def _statistics(payload: Weights | Direction) -> Tensors:
    tensors = payload.statistics if isinstance(payload, Direction) else payload.tensors
    return {name: tensor for name, tensor in tensors.items() if is_statistic(name)}


def _steps(update: Update[Direction]) -> Tensors:
    """a_k under every name that the client has."""
    steps = update.payload.steps
    return {name: tensor.new_tensor(steps) for name, tensor in update.payload.direction.items()}
