"""Points of a figure's panels that are made of trained networks: similarity (CKA) and t-SNE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from potluck.analysis.networks import (
    class_vector_sets,
    common_inputs,
    stage_outputs,
    trained_clients,
)
from potluck.analysis.representations import cka_matrix, mean_cka, tsne
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.recipes.figure import Panel
from potluck.recipes.points import Point
from potluck.runs.restore import restore_run
from potluck.runs.run import Run

COMMON = 200
"""Common inputs of CKA."""

OF_CLASS = 40
"""Common inputs of a t-SNE."""

VECTORS = ("sent by the server", "mean over the clients")
"""The two sets of class vectors: FedL2G's guiding vectors, and the global prototypes of the same run."""

CLIENTS = 10
"""Clients that are compared where a recipe names none."""


def network_points(panel: Panel, title: str, row: str, run: Run) -> Iterator[Point]:
    """Return the points of one row in a panel of networks."""
    restored = restore_run(run.path)
    indices = range(len(restored.plan.federation.members))
    if panel.kind == "vectors":
        clients = trained_clients(run, restored, panel.clients or list(indices))
        named_sets = class_vector_sets(restored, clients)
        sets = dict(zip(VECTORS, named_sets.values(), strict=True))
        labels = {name: labels.tolist() for name, (_, labels) in sets.items()}
        yield from _layout(title, {name: vectors for name, (vectors, _) in sets.items()}, labels)
        return
    clients = trained_clients(run, restored, panel.clients or list(indices)[:CLIENTS])
    x, y = common_inputs(restored, clients, OF_CLASS if panel.kind == "tsne" else COMMON, panel.label)
    stages = _common_stages([stage_outputs(me, x) for me in clients], run)
    if panel.kind == "cka-stages":
        for number, outputs in enumerate(stages):
            yield Point(title, row, f"{number}", mean_cka(outputs))
        return
    if -panel.stage > len(stages):
        raise PotluckError(f"Run {run.name!r} has networks of {len(stages)} stages, not of {-panel.stage}.")
    outputs, names = stages[panel.stage], _names(clients)
    if panel.kind == "cka":
        for name, similarities in zip(names, cka_matrix(outputs).tolist(), strict=True):
            for other, value in zip(names, similarities, strict=True):
                yield Point(title, name, other, value)
        return
    by_client = dict(zip(names, outputs, strict=True))
    yield from _layout(title, by_client, {name: y.tolist() for name in names})


def _common_stages(outputs: Sequence[Mapping[str, Tensor]], run: Run) -> list[list[Tensor]]:
    """The outputs of all clients at each stage after the stem that all of them have."""
    shared = [name for name in outputs[0] if all(name in each for each in outputs)]
    stages = [name for name in shared if name.startswith("stage ")][1:]
    if not stages:
        raise PotluckError(f"Run {run.name!r} has networks that cannot be cut into stages.")
    return [[each[name] for each in outputs] for name in stages]


def _names(clients: Sequence[Client]) -> list[str]:
    return [f"{me.info.index}: {me.info.architecture}" for me in clients]


def _layout(title: str, sets: Mapping[str, Tensor], labels: Mapping[str, Sequence[int]]) -> Iterator[Point]:
    """Every vector in the plane, with its class."""
    layout = tsne(sets, labels)
    assert layout.labels is not None
    for (x, y), where, label in zip(
        layout.points.tolist(), layout.set_of.tolist(), layout.labels.tolist(), strict=True
    ):
        yield Point(title, layout.sets[where], x, y, label=str(label))
