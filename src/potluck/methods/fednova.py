"""FedNova (Wang et al., NeurIPS 2020): average directions, not distances, so that no client counts by its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from potluck.method import (
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
    Supports,
    Tensors,
    Training,
    Update,
    kit,
    setting,
)


@dataclass(frozen=True)
class Direction(Payload):
    """Client to server: d_k = (w - w_k)/a_k and a_k; BatchNorm's statistics travel as they are."""

    direction: Annotated[Tensors, Like("model", subset=True)]
    steps: Annotated[float, Range(0)]
    statistics: Annotated[Tensors, Like("model", subset=True)]


@dataclass
class FedNova(Method[kit.Groups, kit.Weights, Direction]):
    """Clients send the mean direction of their steps; the server goes the mean distance along the mean of them.

    a_k is the number of local steps, or with momentum the number of times that a steady gradient enters the weights.
    """

    name: ClassVar[str] = "fednova"
    summary: ClassVar[str] = "FedAvg of directions, normalised by each client's number of steps"
    supports: ClassVar[Supports] = Supports(
        robust="the normalised directions",
        max_share={"weight": "samples"},
        single_answers="it divides each change by its client's steps",
    )

    aggregate: kit.Sharing = setting("same_arch", "whose weights are averaged, as for fedavg")
    weight: kit.Weighting = setting("samples", "how clients count: by training samples (p_k), or all alike")
    buffers: bool = setting(True, "average BatchNorm statistics as well")

    def init_server(self, ctx: Context) -> kit.Groups:
        """w⁰: one common initialisation per group."""
        return kit.initial_groups(ctx.task, self.aggregate, buffers=self.buffers)

    def broadcast(self, state: kit.Groups, client: ClientInfo, ctx: Context) -> kit.Weights:
        """w, as far as the client's architecture has it."""
        return kit.Weights(kit.tensors_for_client(state, client, ctx.task))

    def client(self, me: Client, message: kit.Weights) -> Direction:
        """Take τ_k local steps and send the distance divided by a_k."""
        kit.load_tensors(me.model, message.tensors)
        steps = me.training.effective_steps(me.fit().steps)
        after = kit.tensors_of(me.model, buffers=self.buffers)
        learned = [name for name, _ in me.model.named_parameters() if name in after]
        direction = {name: (message.tensors[name] - after[name]) / (steps or 1.0) for name in learned}
        statistics = {name: tensor for name, tensor in after.items() if name not in learned}
        return Direction(direction, steps, statistics)

    def server(self, state: kit.Groups, updates: Sequence[Update[Direction]], ctx: Context) -> kit.Groups:
        """w ← w - (Σ p_k a_k) · (Σ p_k d_k), with p_k over the owners of each tensor; τ_k = 0 is ignored."""
        moved = [update for update in updates if update.payload.steps > 0]
        if not moved:
            return state
        result: kit.Groups = {}
        for key, (members, share) in kit.split_by_group(ctx, state, moved).items():
            # Statistics have no direction: they are averaged in place, and what was learned is moved along the mean.
            old, by = (
                kit.average(ctx, state[key], members, _statistics, by=self.weight, share=share),
                self.weight,
            )
            directions = [update.payload.direction for update in members]
            steps = [_steps(update.payload) for update in members]
            mean = kit.mean_change(ctx, old, members, directions, by=by, share=share)
            distance = kit.mean_change(ctx, old, members, steps, by=by, share=kit.WHOLE_ROUND)
            result[key] = {name: tensor - distance[name] * mean[name] for name, tensor in old.items()}
        return result

    def predict(self, me: Client, message: kit.Weights | None) -> Predictor:
        """Return the trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.tensors)

    def predict_server(self, state: kit.Groups, ctx: Context) -> Predictor | None:
        """Return the shared weights, where all clients share one set."""
        return kit.global_predictor(state, ctx)

    def requires(self) -> frozenset[Need]:
        """Return what has to be alike, which depends on the way of sharing."""
        return kit.SHARING_NEEDS[self.aggregate]

    def check_training(self, training: Training) -> None:
        """Reject a kept momentum: a_k counts from a momentum of zero."""
        if training.keep_optimizer and training.optimizer == "sgd" and training.momentum:
            raise PotluckError(
                f"training.keep_optimizer = true with training.momentum = {training.momentum} makes FedNova's steps "
                "uncountable; leave one of them out."
            )

    def paper_accounting(self, down: kit.Weights, up: Direction) -> PaperAccounting:
        """Count the learned parameters and a_k."""
        note = "BatchNorm statistics not counted (FedIN, Table 6)"
        return PaperAccounting(
            kit.count_parameters(up.direction) + 1, kit.count_parameters(down.tensors), note
        )


def _statistics(payload: kit.Weights | Direction) -> Tensors:
    return kit.statistics_of(payload.statistics if isinstance(payload, Direction) else payload.tensors)


def _steps(payload: Direction) -> Tensors:
    """Return a_k under every name that the client has."""
    return {name: tensor.new_tensor(payload.steps) for name, tensor in payload.direction.items()}
