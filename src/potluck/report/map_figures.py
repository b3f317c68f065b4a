"""Maps for print: who confuses what, methods by architecture, client or class, and accuracy against what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from potluck.analysis.accounting import ledger_row
from potluck.analysis.classes import class_accuracy, confusion_matrix
from potluck.analysis.difference import architecture_means
from potluck.analysis.groups import Group
from potluck.core.errors import PotluckError, unknown
from potluck.report.options import Options
from potluck.report.palette import look
from potluck.report.style import WIDTH, legend_beside, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = ("architectures", "clients", "classes")
_FILLS = ("full", "none", "left", "top")  # markers come round after seven methods
_WRITTEN = 36  # characters of a row up to which cells have their number in them


def confusion(groups: list[Group], options: Options) -> Figure:
    """What is taken for what in the final tests, in % of each true class; of one method, over its seeds."""
    if len(groups) > 1:
        raise PotluckError(f"kind 'confusion' draws one method, not {len(groups)}: pass runs of one method.")
    matrices = [confusion_matrix(run, options.client) for run in groups[0].counted]
    size = max(map(len, matrices))
    counts = np.zeros((size, size))
    for matrix in matrices:
        counts[: len(matrix), : len(matrix)] += matrix
    with np.errstate(invalid="ignore"):
        shares = 100 * counts / counts.sum(axis=1, keepdims=True)
    names = [str(label) for label in range(size)]
    figure, axes = new_figure(width=WIDTH, height=0.85 * WIDTH)
    paint(figure, axes, shares, names, names, "% of the true class", (0, 100))
    axes.set_xlabel("taken for")
    axes.set_ylabel("true class")
    return figure


def heatmap(groups: list[Group], options: Options) -> Figure:
    """Final accuracy in %: a row per method, a column per architecture (or `clients`, `classes`)."""
    by = options.field or "architectures"
    if by not in ROWS:
        raise unknown("field of a heat map", by, ROWS)
    found = [_accuracies(group, by) for group in groups]
    columns = list(dict.fromkeys(name for each in found for name in each))
    if not columns:
        raise PotluckError(
            f"The runs do not tell accuracies by {by}: wait for their end, or choose another field."
        )
    values = np.array([[100 * each.get(name, np.nan) for name in columns] for each in found])
    width = min(2 * WIDTH, max(WIDTH, 1.2 + 0.26 * len(columns)))
    figure, axes = new_figure(width=width, height=max(1.5, 0.9 + 0.19 * len(groups)))
    paint(figure, axes, values, [group.label for group in groups], columns, "final accuracy (%)")
    axes.set_xlabel(by)
    return figure


def pareto(groups: list[Group], options: Options) -> Figure:
    """Final accuracy against all that was sent, with the methods that nobody beats in both joined up."""
    rows = [ledger_row(group) for group in groups]
    finals = [float(np.mean([run.final_accuracy for run in group.counted])) for group in groups]
    figure, axes = new_figure()
    sending: list[tuple[float, float]] = []
    floor = -1.0
    for position, (row, accuracy) in enumerate(zip(rows, finals, strict=True)):
        style, percent = look(position), 100 * accuracy
        if row.floats_up + row.floats_down == 0:
            floor, name = max(floor, percent), f"{row.label} (sends nothing)"
            axes.axhline(percent, color=style.light, linestyle="--", linewidth=1, label=name)
            continue
        sent, fill = (row.total_bytes_up + row.total_bytes_down) / 2**20, _FILLS[position // 7 % len(_FILLS)]
        axes.plot(sent, percent, style.marker, color=style.light, fillstyle=fill, label=row.label)
        sending.append((sent, percent))
    if not sending:
        raise PotluckError("kind 'pareto' needs a method that sends something.")
    if front := _front(sending, floor):
        axes.step(
            *zip(*front, strict=True), where="post", color="#777777", linewidth=0.8, linestyle=":", zorder=0
        )
    if max(sending)[0] > 10 * min(sending)[0]:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("traffic of all clients (MiB)")
    axes.set_ylabel("final accuracy (%)")
    legend_beside(axes)
    return figure


def _front(points: Sequence[tuple[float, float]], floor: float) -> list[tuple[float, float]]:
    """The points that are higher than every one that costs less, and than `floor`, which costs nothing."""
    found: list[tuple[float, float]] = []
    for cost, height in sorted(points):
        if height > max([floor, *(each for _, each in found)]):
            found.append((cost, height))
    return found


def paint(
    figure: Figure,
    axes: Axes,
    values: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    label: str,
    limits: tuple[float | None, float | None] = (None, None),
    form: str = "{:.0f}",
) -> None:
    """A heat map with its names, a scale, and numbers where there is room; names that do not fit stand on end."""
    image = axes.imshow(values, cmap="cividis", vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.grid(visible=False)
    few = len(columns) <= 40
    upright = max(map(len, columns)) * len(columns) > 40
    step = 1 if few else -(-len(columns) // 40)
    axes.set_xticks(range(0, len(columns), step), columns[::step], rotation=90 if upright else 0)
    axes.set_yticks(range(len(rows)), rows)
    if len(columns) * len(form.format(100 if form.endswith("0f}") else 1)) <= _WRITTEN and values.size:
        low, high = image.get_clim()
        middle = low + 0.55 * (high - low)
        for row, column in np.argwhere(np.isfinite(values)).tolist():
            ink = "black" if values[row, column] > middle else "white"
            axes.text(
                column, row, form.format(values[row, column]), ha="center", va="center", color=ink, fontsize=6
            )
    figure.colorbar(image, ax=axes, label=label)


def _accuracies(group: Group, by: str) -> dict[str, float]:
    if by == "architectures":
        return {each.name: each.mean for each in architecture_means(group.counted) if each.name}
    if by == "clients":
        found: dict[str, list[float]] = {}
        for run in group.counted:
            for client in run.client_results:
                found.setdefault(client.name, []).append(client.accuracy)
        return {name: float(np.mean(values)) for name, values in found.items()}
    shares = np.array([class_accuracy(run) for run in group.counted])
    known = np.isfinite(shares)
    means = np.where(known, shares, 0).sum(axis=0) / np.where(known.any(axis=0), known.sum(axis=0), np.nan)
    return {str(label): float(mean) for label, mean in enumerate(means)}
