"""What trained networks see, from the checkpoint of a run: CKA between its clients, t-SNE of their features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potluck.analysis.groups import Group
from potluck.analysis.tsne import tsne as lay_out
from potluck.core.client import Client
from potluck.core.errors import PotluckError, unknown
from potluck.report import vector_figures
from potluck.report.feature_figures import cka_figure, mean_cka_figure, tsne_figure
from potluck.report.options import Options
from potluck.runs.ended import Ended, bring_back
from potluck.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS = {"cka": 10, "tsne": 7, "vectors": 100}  # t-SNE has seven markers
INPUTS = 200  # common inputs of CKA, over all clients
POINTS = 40  # of each client in a t-SNE
LAID_OUT = ("features", "prototypes", "vectors")  # what a t-SNE may show


def cka(groups: list[Group], options: Options) -> Figure:
    """How alike the clients' networks see the same inputs: test samples of all of them, in equal parts."""
    clients = _clients(groups, "cka")
    each = -(-INPUTS // len(clients))
    inputs = torch.cat([_inputs(me, each)[0] for me in clients])
    return cka_figure([_features(me, inputs) for me in clients], _names(clients), groups[0].label)


def cka_stages(groups: list[Group], options: Options) -> Figure:
    """Mean similarity over pairs of clients, for each method at every stage that its networks can be cut at."""
    found: dict[str, dict[str, list[Tensor]]] = {}
    for group in groups:
        clients = _clients([group], "cka")
        inputs = torch.cat([_inputs(me, -(-INPUTS // len(clients)))[0] for me in clients])
        seen = [_stages(me, inputs) for me in clients]
        shared = [name for name in seen[0] if all(name in each for each in seen)]
        found[group.label] = {name: [each[name] for each in seen] for name in shared}
    return mean_cka_figure(found)


def _stages(me: Client, x: Tensor) -> dict[str, Tensor]:
    """What each stage gives, and the features at the end."""
    me.model.eval()
    given: dict[str, Tensor] = {}
    with torch.no_grad():
        features = me.model.features(x).flatten(1)
        for number, stage in enumerate(me.model.stages, 1):
            x = stage(x)
            given[f"stage {number}"] = x.flatten(1)
    return {**given, "features": features}


def tsne(groups: list[Group], options: Options) -> Figure:
    """A layout in the plane of what `field` says; the marker is the client or the set, the colour the class."""
    what = options.field or "features"
    if what not in LAID_OUT:
        raise unknown("field of a t-SNE", what, LAID_OUT)
    run = _one_run(groups, "tsne")
    ended = bring_back(run.path)
    if what == "vectors":
        return vector_figures.vectors(ended, _taking_part(run, ended, CLIENTS["vectors"]))
    clients = _taking_part(run, ended, CLIENTS["tsne"])
    named = dict(zip(_names(clients), clients, strict=True))
    return vector_figures.prototypes(named) if what == "prototypes" else _features_figure(named)


def sends_vectors(group: Group) -> bool:
    """Whether the method's server has a vector for each class to send."""
    return vector_figures.sent_per_class(bring_back(group.counted[0].path)) is not None


def _features_figure(clients: dict[str, Client]) -> Figure:
    """Features of every client's own test samples, laid out together."""
    taken = {name: _inputs(me, POINTS) for name, me in clients.items()}
    features = {name: _features(clients[name], x) for name, (x, _) in taken.items()}
    return tsne_figure(lay_out(features, {name: y.tolist() for name, (_, y) in taken.items()}))


def _clients(groups: list[Group], kind: str) -> list[Client]:
    run = _one_run(groups, kind)
    return _taking_part(run, bring_back(run.path), CLIENTS[kind])


def _one_run(groups: list[Group], kind: str) -> Run:
    if len(groups) > 1:
        raise PotluckError(f"kind {kind!r} draws one run, not {len(groups)}: pass one run folder.")
    return groups[0].counted[0]


def _taking_part(run: Run, ended: Ended, most: int) -> list[Client]:
    """The first clients of a run that have test samples, as training left them."""
    found: list[Client] = []
    for index in range(len(ended.resolved.federation.members)):
        if len(found) < most and index not in ended.loop.newcomers:
            me = ended.client(index)
            if me.test is not None and len(me.test):
                found.append(me)
    if len(found) < 2:
        raise PotluckError(
            f"Run {run.name!r} has fewer than 2 clients with test samples; choose another kind."
        )
    return found


def _inputs(me: Client, count: int) -> tuple[Tensor, Tensor]:
    assert me.test is not None
    x, y = me.test.take(slice(0, count))
    return me.prepare(x, y)


def _features(me: Client, x: Tensor) -> Tensor:
    me.model.eval()
    with torch.no_grad():
        return me.model.features(x).flatten(1)


def _names(clients: list[Client]) -> list[str]:
    return [f"{me.info.name} ({me.info.architecture})" for me in clients]
