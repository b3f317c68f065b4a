"""Pictures of what networks see: CKA heat maps and bars, and t-SNE scatters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from potluck.analysis.cka import Features, cka_matrix, mean_cka
from potluck.analysis.tsne import Embedding
from potluck.report.palette import look
from potluck.report.style import check_output, for_print, new_figure, save


def plot_cka(features: Sequence[Features], names: Sequence[str], out: str | Path, title: str = "") -> Path:
    """A heat map of the similarity between all pairs of clients, from features of common inputs."""
    file, matrix = check_output(out), cka_matrix(features)
    with for_print():
        figure, axes = new_figure(width=3.2, height=2.8)
        image = axes.imshow(matrix, vmin=0, vmax=1, cmap="cividis")
        axes.grid(visible=False)
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axes.set_yticks(range(len(names)), names)
        axes.set_title(title)
        if len(names) <= 10:
            for row, column in np.ndindex(*matrix.shape):
                ink = "black" if matrix[row, column] > 0.55 else "white"
                axes.text(
                    column, row, f"{matrix[row, column]:.2f}", ha="center", va="center", color=ink, fontsize=6
                )
        figure.colorbar(image, ax=axes, label="linear CKA")
        return save(figure, file)


def plot_mean_cka(stages: Mapping[str, Mapping[str, Sequence[Features]]], out: str | Path) -> Path:
    """Mean CKA over pairs of clients at each stage: `stages[method][stage]` are the clients' features."""
    file = check_output(out)
    names = list(dict.fromkeys(stage for by_stage in stages.values() for stage in by_stage))
    with for_print():
        figure, axes = new_figure()
        width = 0.8 / len(stages)
        for position, (method, by_stage) in enumerate(stages.items()):
            places = [names.index(stage) + (position - (len(stages) - 1) / 2) * width for stage in by_stage]
            axes.bar(
                places,
                [mean_cka(features) for features in by_stage.values()],
                width,
                color=look(position).light,
                label=method,
            )
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel("mean linear CKA")
        axes.set_ylim(0, 1)
        axes.grid(visible=False, axis="x")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=min(4, len(stages)))
        return save(figure, file)


def plot_tsne(embedding: Embedding, out: str | Path) -> Path:
    """A scatter of a t-SNE layout: the marker tells the set, the colour the class (or the set, without classes)."""
    file = check_output(out)
    with for_print():
        figure, axes = new_figure(height=2.8)
        for position, name in enumerate(embedding.sets):
            mine = embedding.set_of == position
            points = embedding.points[mine]
            colours = look(position).light if embedding.labels is None else embedding.labels[mine]
            axes.scatter(
                points[:, 0],
                points[:, 1],
                c=colours,
                cmap=None if embedding.labels is None else "tab10",
                vmin=None if embedding.labels is None else -0.5,
                vmax=None if embedding.labels is None else max(9.5, float(embedding.labels.max()) + 0.5),
                marker=look(position).marker,
                s=12,
                linewidths=0,
                label=name,
            )
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return save(figure, file)
