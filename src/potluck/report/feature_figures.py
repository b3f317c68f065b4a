"""Draw learned representations: CKA heat maps, t-SNE of features and class vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from potluck.analysis.groups import Group
from potluck.analysis.networks import Rows, class_vector_sets, own_means, sent_per_class, stage_outputs
from potluck.analysis.representations import Embedding, Features, cka_matrix, mean_cka, tsne
from potluck.core.client import Client
from potluck.core.errors import PotluckError, unknown
from potluck.report.curve_figures import single_run
from potluck.report.map_figures import draw_heat_map
from potluck.report.style import (
    WIDTH,
    FigureOptions,
    check_output,
    class_colours,
    label_categories,
    legend_above,
    method_style,
    new_figure,
    print_style,
    save,
)
from potluck.runs.restore import RestoredRun, restore_run
from potluck.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_cka(features: Sequence[Features], names: Sequence[str], out: str | Path, title: str = "") -> Path:
    """Write a heat map of the similarity between all pairs of clients, from features of the same inputs."""
    file = check_output(out)
    with print_style():
        return save(cka_figure(features, names, title), file)


def cka_figure(features: Sequence[Features], names: Sequence[str], title: str = "") -> Figure:
    """Draw the heat map of pairwise similarities, with a colour bar."""
    figure, axes = new_figure(height=0.75 * WIDTH)
    draw_heat_map(figure, axes, cka_matrix(features), names, names, "linear CKA", (0, 1), "{:.2f}")
    axes.set_title(title)
    return figure


def plot_mean_cka(stages: Mapping[str, Mapping[str, Sequence[Features]]], out: str | Path) -> Path:
    """Write mean CKA over pairs of clients at each stage: `stages[method][stage]` are the clients' features."""
    file = check_output(out)
    with print_style():
        return save(mean_cka_figure(stages), file)


def mean_cka_figure(
    stages: Mapping[str, Mapping[str, Sequence[Features]]], positions: Sequence[int] = ()
) -> Figure:
    """Draw mean CKA as bars, a colour per method; `positions` are the methods' places in the report."""
    names = list(dict.fromkeys(stage for by_stage in stages.values() for stage in by_stage))
    figure, axes = new_figure()
    width = 0.8 / len(stages)
    for place, (method, by_stage) in enumerate(stages.items()):
        offset = (place - (len(stages) - 1) / 2) * width
        colour = method_style(positions[place] if positions else place).light
        heights = [mean_cka(features) for features in by_stage.values()]
        axes.bar(
            [names.index(stage) + offset for stage in by_stage], heights, width, color=colour, label=method
        )
    axes.set_ylabel("mean linear CKA")
    axes.set_ylim(0, 1)
    axes.grid(visible=False, axis="x")
    label_categories(axes, names)
    legend_above(axes)
    return figure


def plot_tsne(embedding: Embedding, out: str | Path) -> Path:
    """Write a scatter plot of a t-SNE layout: markers are sets, colours are classes (or sets, without classes)."""
    file = check_output(out)
    with print_style():
        return save(tsne_figure(embedding), file)


def tsne_figure(embedding: Embedding, class_names: Sequence[str] = ()) -> Figure:
    """Draw a t-SNE layout with a legend of the sets' markers and the classes' colours."""
    from matplotlib.lines import Line2D

    figure, axes = new_figure(height=2.8)
    labels = embedding.labels
    colours = {} if labels is None else class_colours(np.unique(labels).tolist())
    for position in range(len(embedding.sets)):
        members, style = embedding.set_of == position, method_style(position)
        shades = style.light if labels is None else [colours[label] for label in labels[members].tolist()]
        x, y = embedding.points[members].T
        axes.scatter(x, y, c=shades, marker=style.marker, s=12, linewidths=0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    handles = []
    for position, name in enumerate(embedding.sets):
        style = method_style(position)
        shade = style.light if labels is None else "#555555"
        handles.append(Line2D([], [], linestyle="", marker=style.marker, color=shade, label=name))
    for label, shade in colours.items():
        name = class_names[label] if label < len(class_names) else str(label)
        name = f"class {name}" if name.isdigit() else name
        handles.append(Line2D([], [], linestyle="", marker="o", color=shade, label=name))
    legend_above(axes, handles)
    return figure


def prototypes(clients: Mapping[str, Client], class_names: Sequence[str] = ()) -> Figure:
    """Draw the mean feature of each class that a client holds, of several clients."""
    return _layout_figure({name: own_means(me, "features") for name, me in clients.items()}, class_names)


def vectors(ended: RestoredRun, clients: Sequence[Client]) -> Figure:
    """Draw the vector that the server sends for each class, and the mean over clients of their class means."""
    return _layout_figure(class_vector_sets(ended, clients), ended.plan.federation.class_names)


def _layout_figure(sets: Mapping[str, Rows], class_names: Sequence[str]) -> Figure:
    rows = {name: vectors for name, (vectors, _) in sets.items()}
    embedding = tsne(rows, {name: labels.tolist() for name, (_, labels) in sets.items()})
    return tsne_figure(embedding, class_names)


MAX_CLIENTS = {"cka": 10, "tsne": 7, "vectors": 100}  # t-SNE has seven markers
INPUTS = 200  # common inputs of CKA, over all clients
POINTS = 40  # per client in a t-SNE
TSNE_FIELDS = ("features", "prototypes", "vectors")


def cka(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw pairwise similarity of the clients' features for the same inputs: test samples of all, in equal parts."""
    clients = _clients(groups, "cka")
    each = -(-INPUTS // len(clients))
    inputs = torch.cat([_inputs(me, each)[0] for me in clients])
    return cka_figure([_features(me, inputs) for me in clients], _names(clients), groups[0].label)


def cka_stages(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw mean similarity over pairs of clients, for each method and every stage of its networks."""
    by_method: dict[str, dict[str, list[Tensor]]] = {}
    for group in groups:
        clients = _clients([group], "cka")
        inputs = torch.cat([_inputs(me, -(-INPUTS // len(clients)))[0] for me in clients])
        outputs = [stage_outputs(me, inputs) for me in clients]
        shared = [name for name in outputs[0] if all(name in each for each in outputs)]
        by_method[group.label] = {name: [each[name] for each in outputs] for name in shared}
    return mean_cka_figure(by_method, [group.position for group in groups])


def plot_features(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw a t-SNE of `field`; the marker is the client or the set, the colour the class."""
    field = options.field or "features"
    if field not in TSNE_FIELDS:
        raise unknown("field of a t-SNE", field, TSNE_FIELDS)
    run = single_run(groups, "tsne")
    restored = restore_run(run.path)
    if field == "vectors":
        return vectors(restored, _trained_clients(run, restored, MAX_CLIENTS["vectors"]))
    clients = _trained_clients(run, restored, MAX_CLIENTS["tsne"])
    by_name = dict(zip(_names(clients), clients, strict=True))
    draw = prototypes if field == "prototypes" else _features_figure
    return draw(by_name, restored.plan.federation.class_names)


def sends_vectors(group: Group) -> bool:
    """Return whether the method's server sends a vector per class."""
    return sent_per_class(restore_run(group.counted_runs[0].path)) is not None


def _features_figure(clients: Mapping[str, Client], class_names: Sequence[str]) -> Figure:
    """Draw the features of every client's test samples in one layout."""
    inputs = {name: _inputs(me, POINTS) for name, me in clients.items()}
    features = {name: _features(clients[name], x) for name, (x, _) in inputs.items()}
    embedding = tsne(features, {name: y.tolist() for name, (_, y) in inputs.items()})
    return tsne_figure(embedding, class_names)


def _clients(groups: list[Group], kind: str) -> list[Client]:
    run = single_run(groups, kind)
    return _trained_clients(run, restore_run(run.path), MAX_CLIENTS[kind])


def _trained_clients(run: Run, ended: RestoredRun, most: int) -> list[Client]:
    """Return the first clients of a run that have test samples, as training left them."""
    clients: list[Client] = []
    for index in range(len(ended.plan.federation.members)):
        if len(clients) < most and index not in ended.loop.absent:
            me = ended.client(index)
            if me.test is not None and len(me.test):
                clients.append(me)
    if len(clients) < 2:
        raise PotluckError(
            f"Run {run.name!r} has fewer than 2 clients with test samples; choose another kind."
        )
    return clients


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
