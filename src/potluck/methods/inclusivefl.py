"""InclusiveFL (Liu et al., KDD 2022): shallow models share layers with deep ones and learn from those above."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

from potluck.method import (
    Client,
    ClientInfo,
    Context,
    Method,
    Need,
    PaperAccounting,
    Predictor,
    Supports,
    Task,
    Tensors,
    Update,
    kit,
    setting,
)

BLOCK = re.compile(r"(?P<stage>.+?)\.(?P<number>\d+)\.(?P<rest>.+)")
"""A layer in this sense is a block: `layer2.0.conv1.weight` is in stage `layer2`, block 0."""


@dataclass
class InclusiveFL(Method[kit.Groups, kit.Weights, kit.Weights]):
    """One model per depth; equal names are averaged over the depths, and each depth's top blocks get momentum.

    The last block of a stage in a shallower model takes a part of its change from the mean change of the blocks from
    that number on in the next deeper model.
    """

    name: ClassVar[str] = "inclusivefl"
    summary: ClassVar[str] = (
        "depth-nested models: layer-wise averaging, and momentum from deeper to shallower"
    )
    needs: ClassVar[frozenset[Need]] = frozenset({Need.NESTED_DEPTH})
    supports: ClassVar[Supports] = Supports(
        robust="the weights, name by name",
        max_share={"weight": "samples"},
        single_answers="it moves changes between architectures layer by layer",
    )

    beta: float = setting(0.2, "part β of a top block's change that comes from the deeper model", ge=0, le=1)
    tops: Literal["shared", "own"] = setting(
        "own",
        "head and last blocks of a depth: averaged within it (own, the paper) or over all depths by name (shared, as "
        "FedIN compares it)",
    )
    weight: kit.Weighting = setting(
        "samples", "how clients count in the mean: by training samples, or all alike"
    )
    buffers: bool = setting(True, "average BatchNorm statistics as well")

    def init_server(self, ctx: Context) -> kit.Groups:
        """Make a model per depth, equal names with equal values."""
        shared = kit.initial_groups(ctx.task, "layerwise", buffers=self.buffers)[kit.ALL]
        return {
            name: {key: shared[key].clone() for key in architecture.initial if key in shared}
            for name, architecture in ctx.task.architectures.items()
        }

    def broadcast(self, state: kit.Groups, client: ClientInfo, ctx: Context) -> kit.Weights:
        """Return the model of the client's depth."""
        return kit.Weights(kit.tensors_for_client(state, client, ctx.task))

    def client(self, me: Client, message: kit.Weights) -> kit.Weights:
        """Start from the received weights, train, send the result."""
        kit.load_tensors(me.model, message.tensors)
        me.fit()
        return kit.Weights(kit.tensors_of(me.model, buffers=self.buffers))

    def server(self, state: kit.Groups, updates: Sequence[Update[kit.Weights]], ctx: Context) -> kit.Groups:
        """Average by name over the depths, then pass momentum down between the depths that took part."""
        averaged = {}
        for depth, old in state.items():
            parts = [self._part_for(update, depth, ctx.task) for update in updates]
            averaged[depth] = kit.average(ctx, old, parts, "tensors", by=self.weight)
        present = {update.client.architecture for update in updates}
        result = dict(averaged)
        for small, large in pairwise(depth for depth in _by_size(ctx.task) if depth in present):
            result[small] = {**averaged[small], **self._momentum(state, averaged, small, large, ctx.task)}
        return result

    def predict(self, me: Client, message: kit.Weights | None) -> Predictor:
        """Return the trained copy, or the model as just received."""
        return me.model if message is None else me.predictor(message.tensors)

    def predict_server(self, state: kit.Groups, ctx: Context) -> Predictor | None:
        """Return the deepest model."""
        return kit.global_predictor({kit.ALL: state[_by_size(ctx.task)[-1]]}, ctx)

    def paper_accounting(self, down: kit.Weights, up: kit.Weights) -> PaperAccounting:
        """Count learned parameters (FedIN's Table 6)."""
        note = "BatchNorm statistics not counted (FedIN, Table 6)"
        return PaperAccounting(kit.count_parameters(up.tensors), kit.count_parameters(down.tensors), note)

    def _part_for(self, update: Update[kit.Weights], depth: str, task: Task) -> Update[kit.Weights]:
        """Return the update with the tensors that count for a depth."""
        sender = update.client.architecture
        if self.tops == "shared" or sender == depth:
            return update
        own = _own_names(task, sender) | _own_names(task, depth)
        shared = {name: tensor for name, tensor in update.payload.tensors.items() if name not in own}
        return replace(update, payload=kit.Weights(shared))

    def _momentum(
        self, state: kit.Groups, averaged: kit.Groups, small: str, large: str, task: Task
    ) -> Tensors:
        """g ← (1-β)·g + β · mean of g_j over the deeper model's blocks from this one on, for the top blocks."""
        mixed = {}
        for name, peers in _peers(state[small], state[large]).items():
            if name in task.architectures[small].parameters:
                own = averaged[small][name] - state[small][name]
                changes = [averaged[large][peer] - state[large][peer] for peer in peers]
                deeper = kit.sum_tensors(changes) / len(peers)
                mixed[name] = averaged[small][name] + self.beta * (deeper - own)
        return mixed


def _by_size(task: Task) -> list[str]:
    """Return the architectures, shallowest first."""
    return sorted(
        task.architectures, key=lambda name: sum(t.numel() for t in task.architectures[name].initial.values())
    )


def _last_blocks(names: Mapping[str, object]) -> dict[str, int]:
    """Return the number of the last block of each stage."""
    last: dict[str, int] = {}
    for block in map(BLOCK.fullmatch, names):
        if block:
            last[block["stage"]] = max(last.get(block["stage"], 0), int(block["number"]))
    return last


def _peers(small: Tensors, large: Tensors) -> dict[str, list[str]]:
    """Return, for each tensor of a top block, those of the deeper model's blocks from there to the stage's end."""
    tops, ends = _last_blocks(small), _last_blocks(large)
    peers: dict[str, list[str]] = {}
    for name, tensor in small.items():
        block = BLOCK.fullmatch(name)
        if block and int(block["number"]) == tops[block["stage"]] < ends[block["stage"]]:
            stage, first, rest = block["stage"], tops[block["stage"]], block["rest"]
            names = [f"{stage}.{number}.{rest}" for number in range(first, ends[stage] + 1)]
            peers[name] = [peer for peer in names if peer in large and large[peer].shape == tensor.shape]
    return peers


def _own_names(task: Task, depth: str) -> set[str]:
    """Return the names of the head, and of the last blocks of stages whose depth differs between the architectures."""
    lasts = {name: _last_blocks(architecture.initial) for name, architecture in task.architectures.items()}
    own = {f"head.{name}" for name in task.architectures[depth].head}
    for name in task.architectures[depth].initial:
        block = BLOCK.fullmatch(name)
        if block and int(block["number"]) == lasts[depth][block["stage"]]:
            stage = block["stage"]
            if len({last.get(stage) for last in lasts.values()}) > 1:
                own.add(name)
    return own
