"""InclusiveFL (Liu et al., KDD 2022): shallow models share layers with deep ones and learn from those above."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import ClassVar, Literal

from potluck.core import (
    Client,
    ClientInfo,
    Context,
    Method,
    Need,
    PaperAccounting,
    Predictor,
    Task,
    Tensors,
    Update,
    load_tensors,
    setting,
    tensors_of,
)
from potluck.kit import (
    ALL,
    Groups,
    Weighting,
    Weights,
    average,
    initial_groups,
    learned_numbers,
    slice_for,
    sum_tensors,
)
from potluck.methods.fedavg import global_predictor

BLOCK = re.compile(r"(?P<stage>.+?)\.(?P<number>\d+)\.(?P<rest>.+)")
"""A layer in this sense is a block: `layer2.0.conv1.weight` is in stage `layer2`, block 0."""


@dataclass
class InclusiveFL(Method[Groups, Weights, Weights]):
    """One model per depth; equal names are averaged over the depths, and each depth's top blocks get momentum.

    The last block of a stage in a shallower model takes a part of its change from the mean change of the blocks from
    that number on in the next deeper model.
    """

    name: ClassVar[str] = "inclusivefl"
    summary: ClassVar[str] = (
        "depth-nested models: layer-wise averaging, and momentum from deeper to shallower"
    )
    averages: ClassVar[str] = "the weights, name by name"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.NESTED_DEPTH})

    sees_latest: ClassVar[bool] = True

    beta: float = setting(0.2, "part β of a top block's change that comes from the deeper model", ge=0, le=1)
    tops: Literal["shared", "own"] = setting(
        "own",
        "head and last blocks of a depth: averaged within it (own, the paper) or over all depths by name (shared, as "
        "FedIN compares it)",
    )
    weight: Weighting = setting("samples", "how clients count in the mean: by training samples, or all alike")
    buffers: bool = setting(True, "average BatchNorm statistics as well")

    def init_server(self, ctx: Context) -> Groups:
        """A model per depth, equal names with equal values."""
        shared = initial_groups(ctx.task, "layerwise", buffers=self.buffers)[ALL]
        return {
            name: {key: shared[key].clone() for key in architecture.initial if key in shared}
            for name, architecture in ctx.task.architectures.items()
        }

    def broadcast(self, state: Groups, client: ClientInfo, ctx: Context) -> Weights:
        """The model of the client's depth."""
        return Weights(slice_for(state, client, ctx.task))

    def client(self, me: Client, message: Weights) -> Weights:
        """Start from the received weights, train, send the result."""
        load_tensors(me.model, message.tensors)
        me.fit()
        return Weights(tensors_of(me.model, buffers=self.buffers))

    def server(self, state: Groups, updates: Sequence[Update[Weights]], ctx: Context) -> Groups:
        """Average by name over the depths, then pass momentum down between the depths that took part."""
        averaged = {}
        for depth, old in state.items():
            counting = [self._shared(update, depth, ctx.task) for update in updates]
            averaged[depth] = average(ctx, old, counting, attrgetter("tensors"), self.weight)
        present = {update.client.architecture for update in updates}
        result = dict(averaged)
        for small, large in pairwise(depth for depth in _by_size(ctx.task) if depth in present):
            result[small] = {**averaged[small], **self._momentum(state, averaged, small, large, ctx.task)}
        return result

    def _shared(self, update: Update[Weights], depth: str, task: Task) -> Update[Weights]:
        """The answer with what of it counts for a depth."""
        sender = update.client.architecture
        if self.tops == "shared" or sender == depth:
            return update
        kept = _own_names(task, sender) | _own_names(task, depth)
        counts = {name: tensor for name, tensor in update.payload.tensors.items() if name not in kept}
        return replace(update, payload=Weights(counts))

    def _momentum(self, state: Groups, averaged: Groups, small: str, large: str, task: Task) -> Tensors:
        """g ← (1-β)·g + β · mean of g_j over the deeper model's blocks from this one on, for the top blocks."""
        mixed = {}
        for name, peers in _peers(state[small], state[large]).items():
            if name in task.architectures[small].parameters:
                own = averaged[small][name] - state[small][name]
                deeper = sum_tensors([averaged[large][peer] - state[large][peer] for peer in peers]) / len(
                    peers
                )
                mixed[name] = averaged[small][name] + self.beta * (deeper - own)
        return mixed

    def predict(self, me: Client, message: Weights | None) -> Predictor:
        """The trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.tensors)

    def predict_server(self, state: Groups, ctx: Context) -> Predictor | None:
        """The deepest model."""
        return global_predictor({ALL: state[_by_size(ctx.task)[-1]]}, ctx)

    def paper_accounting(self, down: Weights, up: Weights) -> PaperAccounting:
        """Papers count learned parameters."""
        note = "BatchNorm statistics not counted (FedIN, Table 6)"
        return PaperAccounting(learned_numbers(up.tensors), learned_numbers(down.tensors), note)


def _by_size(task: Task) -> list[str]:
    """The architectures, shallowest first."""
    return sorted(
        task.architectures, key=lambda name: sum(t.numel() for t in task.architectures[name].initial.values())
    )


def _last_blocks(names: Mapping[str, object]) -> dict[str, int]:
    """The number of the last block of each stage."""
    last: dict[str, int] = {}
    for found in map(BLOCK.fullmatch, names):
        if found:
            last[found["stage"]] = max(last.get(found["stage"], 0), int(found["number"]))
    return last


def _peers(small: Tensors, large: Tensors) -> dict[str, list[str]]:
    """For each tensor of a top block, its like in the deeper model's blocks from there to the stage's end."""
    tops, ends = _last_blocks(small), _last_blocks(large)
    peers: dict[str, list[str]] = {}
    for name, tensor in small.items():
        found = BLOCK.fullmatch(name)
        if found and int(found["number"]) == tops[found["stage"]] < ends[found["stage"]]:
            stage, first, rest = found["stage"], tops[found["stage"]], found["rest"]
            names = [f"{stage}.{number}.{rest}" for number in range(first, ends[stage] + 1)]
            peers[name] = [peer for peer in names if peer in large and large[peer].shape == tensor.shape]
    return peers


def _own_names(task: Task, depth: str) -> set[str]:
    """The head, and the last blocks of stages whose depth differs between the architectures."""
    lasts = {name: _last_blocks(architecture.initial) for name, architecture in task.architectures.items()}
    own = {f"head.{name}" for name in task.architectures[depth].head}
    for name in task.architectures[depth].initial:
        found = BLOCK.fullmatch(name)
        if found and int(found["number"]) == lasts[depth][found["stage"]]:
            stage = found["stage"]
            if len({last.get(stage) for last in lasts.values()}) > 1:
                own.add(name)
    return own
