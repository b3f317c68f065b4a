"""Draw confusion matrices, heat maps by architecture, client or class, and accuracy against traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from potluck.analysis.clients import (
    architecture_means,
    class_accuracy,
    class_labels,
    client_label,
    confusion_matrix,
)
from potluck.analysis.cost import traffic_row
from potluck.analysis.groups import Group
from potluck.core.errors import PotluckError, unknown
from potluck.report.style import (
    WIDTH,
    FigureOptions,
    label_categories,
    legend_above,
    log_scale,
    method_style,
    new_figure,
    tick_step,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIELDS = ("architectures", "clients", "classes")
_WRITTEN = 36  # characters of a row up to which cells contain their number


def confusion(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw the confusion matrix of the final tests, in % of each true class; of one method, over its seeds."""
    if len(groups) > 1:
        raise PotluckError(f"kind 'confusion' draws one method, not {len(groups)}: pass runs of one method.")
    runs = groups[0].counted_runs
    matrices = [confusion_matrix(run, options.client) for run in runs]
    size = max(map(len, matrices))
    counts = np.zeros((size, size))
    for matrix in matrices:
        counts[: len(matrix), : len(matrix)] += matrix
    with np.errstate(invalid="ignore"):
        shares = 100 * counts / counts.sum(axis=1, keepdims=True)
    names = class_labels(runs[0], size)
    figure, axes = new_figure(height=0.85 * WIDTH)
    draw_heat_map(figure, axes, shares, names, names, "% of the true class", (0, 100))
    if options.client is not None:
        axes.set_title(client_label(runs[0], options.client))
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    return figure


def heatmap(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw final accuracy in %: a row per method, a column per architecture (or `clients`, `classes`)."""
    by = options.field or "architectures"
    if by not in FIELDS:
        raise unknown("field of a heat map", by, FIELDS)
    rows = [_accuracies(group, by) for group in groups]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        raise PotluckError(
            f"The runs have no accuracies by {by}: wait until they are finished, or choose another field."
        )
    values = np.array([[100 * row.get(name, np.nan) for name in columns] for row in rows])
    figure, axes = new_figure(height=max(1.5, 0.9 + 0.19 * len(groups)))
    draw_heat_map(figure, axes, values, [group.label for group in groups], columns, "final accuracy (%)")
    axes.set_xlabel(by)
    return figure


def pareto(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw final accuracy against total traffic, with the Pareto front as a line."""
    rows = [traffic_row(group) for group in groups]
    finals = [float(np.mean([run.final_accuracy for run in group.counted_runs])) for group in groups]
    figure, axes = new_figure()
    sending: list[tuple[float, float]] = []
    floor = -1.0
    for group, row, accuracy in zip(groups, rows, finals, strict=True):
        style, percent = method_style(group.position), 100 * accuracy
        if row.floats_up + row.floats_down == 0:
            floor, name = max(floor, percent), f"{row.label} (sends nothing)"
            axes.axhline(percent, color=style.light, linestyle="--", linewidth=1, label=name)
            continue
        sent = (row.total_bytes_up + row.total_bytes_down) / 2**20
        axes.plot(sent, percent, style.marker, color=style.light, fillstyle=style.fill, label=row.label)
        sending.append((sent, percent))
    if not sending:
        raise PotluckError("kind 'pareto' needs a method that sends something.")
    if front := _front(sending, floor):
        axes.step(
            *zip(*front, strict=True), where="post", color="#777777", linewidth=0.8, linestyle=":", zorder=0
        )
    if max(sending)[0] > 10 * min(sending)[0]:
        log_scale(axes)
    axes.set_xlabel("traffic of all clients (MiB)")
    axes.set_ylabel("final accuracy (%)")
    legend_above(axes)
    return figure


def _front(points: Sequence[tuple[float, float]], floor: float) -> list[tuple[float, float]]:
    """Return the points higher than every cheaper point, and than `floor`, which costs nothing."""
    front: list[tuple[float, float]] = []
    for cost, height in sorted(points):
        if height > max([floor, *(each for _, each in front)]):
            front.append((cost, height))
    return front


def draw_heat_map(
    figure: Figure,
    axes: Axes,
    values: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    label: str,
    limits: tuple[float | None, float | None] = (None, None),
    form: str = "{:.0f}",
) -> None:
    """Draw a heat map with a colour bar, and numbers where they fit; of many names every second, third … is shown."""
    image = axes.imshow(values, cmap="cividis", vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label=label)
    digits = len(form.format(100 if form.endswith("0f}") else 1))
    if len(columns) * digits <= _WRITTEN and values.size:
        low, high = image.get_clim()
        middle = low + 0.55 * (high - low)
        for row, column in np.argwhere(np.isfinite(values)).tolist():
            ink, text = "black" if values[row, column] > middle else "white", form.format(values[row, column])
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=6)
    _, height = figure.get_size_inches()
    down, across = tick_step(len(rows), height - 0.6), tick_step(len(columns), WIDTH - 1.4)
    axes.set_yticks(range(0, len(rows), down), rows[::down])
    label_categories(axes, columns[::across], across)


def _accuracies(group: Group, by: str) -> dict[str, float]:
    if by == "architectures":
        return {each.name: each.mean for each in architecture_means(group.counted_runs) if each.name}
    if by == "clients":
        by_client: dict[str, list[float]] = {}
        for run in group.counted_runs:
            for client in run.client_results:
                by_client.setdefault(client.name, []).append(client.accuracy)
        return {name: float(np.mean(values)) for name, values in by_client.items()}
    shares = np.array([class_accuracy(run) for run in group.counted_runs])
    finite = np.isfinite(shares)
    means = np.where(finite, shares, 0).sum(axis=0) / np.where(finite.any(axis=0), finite.sum(axis=0), np.nan)
    names = class_labels(group.counted_runs[0], len(means))
    return {name: float(mean) for name, mean in zip(names, means, strict=True)}
