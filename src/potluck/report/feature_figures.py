"""Pictures of what networks see: CKA heat maps and bars, and t-SNE scatters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.analysis.cka import Features, cka_matrix, mean_cka
from potluck.analysis.tsne import Embedding
from potluck.report.map_figures import paint
from potluck.report.palette import look
from potluck.report.style import WIDTH, check_output, for_print, legend_beside, new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_cka(features: Sequence[Features], names: Sequence[str], out: str | Path, title: str = "") -> Path:
    """A heat map of the similarity between all pairs of clients, from features of common inputs."""
    file = check_output(out)
    with for_print():
        return save(cka_figure(features, names, title), file)


def cka_figure(features: Sequence[Features], names: Sequence[str], title: str = "") -> Figure:
    """That heat map; its scale says what the colours mean."""
    side = WIDTH if len(names) < 8 else 1.3 * WIDTH
    figure, axes = new_figure(width=side, height=0.9 * side)
    paint(figure, axes, cka_matrix(features), names, names, "linear CKA", (0, 1), "{:.2f}")
    axes.set_title(title)
    return figure


def plot_mean_cka(stages: Mapping[str, Mapping[str, Sequence[Features]]], out: str | Path) -> Path:
    """Mean CKA over pairs of clients at each stage: `stages[method][stage]` are the clients' features."""
    file = check_output(out)
    with for_print():
        return save(mean_cka_figure(stages), file)


def mean_cka_figure(stages: Mapping[str, Mapping[str, Sequence[Features]]]) -> Figure:
    """Those bars, a colour per method."""
    names = list(dict.fromkeys(stage for by_stage in stages.values() for stage in by_stage))
    figure, axes = new_figure()
    width = 0.8 / len(stages)
    for position, (method, by_stage) in enumerate(stages.items()):
        places = [names.index(stage) + (position - (len(stages) - 1) / 2) * width for stage in by_stage]
        heights = [mean_cka(features) for features in by_stage.values()]
        axes.bar(places, heights, width, color=look(position).light, label=method)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("mean linear CKA")
    axes.set_ylim(0, 1)
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=min(4, len(stages)))
    return figure


def plot_tsne(embedding: Embedding, out: str | Path) -> Path:
    """A scatter of a t-SNE layout: the marker tells the set, the colour the class (or the set, without classes)."""
    file = check_output(out)
    with for_print():
        return save(tsne_figure(embedding), file)


def tsne_figure(embedding: Embedding) -> Figure:
    """That scatter, with a legend of the sets' markers and one of the classes' colours."""
    from matplotlib.lines import Line2D

    figure, axes = new_figure(height=2.8)
    colour = _class_colours(embedding)
    for position in range(len(embedding.sets)):
        mine = embedding.set_of == position
        style, labels = look(position), embedding.labels
        shades = (
            [style.light] * int(mine.sum())
            if labels is None
            else [colour[label] for label in labels[mine].tolist()]
        )
        x, y = embedding.points[mine].T
        axes.scatter(x, y, c=shades, marker=style.marker, s=12, linewidths=0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    own = embedding.labels is None
    marks = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=look(at).marker,
            color=look(at).light if own else "#555555",
            label=name,
        )
        for at, name in enumerate(embedding.sets)
    ]
    kinds = [
        Line2D([], [], linestyle="", marker="o", color=shade, label=f"class {label}")
        for label, shade in colour.items()
    ]
    legend_beside(axes, [*marks, *kinds])
    return figure


def _class_colours(embedding: Embedding) -> dict[int, Any]:
    """A colour for each class that occurs; neighbours among many classes look alike, as they must."""
    if embedding.labels is None:
        return {}
    from matplotlib import colormaps

    classes = np.unique(embedding.labels).tolist()
    few = len(classes) <= 10
    shades = colormaps["tab10"] if few else colormaps["turbo"]
    return {label: shades(at if few else at / (len(classes) - 1)) for at, label in enumerate(classes)}
