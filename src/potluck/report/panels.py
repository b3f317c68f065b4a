"""Draw a figure of several panels from plain numbers: lines, bars and points, with a common legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from potluck.analysis.curves import smooth
from potluck.report.style import figure_legend, label_categories, method_style, new_grid

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PRINTED = "printed"
"""What the legend says of values that are the paper's."""

_MARKERS = 6  # along a line
_INK = "#444444"
_DASHES: tuple[tuple[int, tuple[int, ...]], ...] = ((0, (4, 2)), (0, (1, 1)), (0, (4, 1, 1, 1)))


@dataclass(frozen=True)
class Series:
    """One line, set of bars or set of points: places, values, spreads, and the numbers printed in the paper."""

    label: str
    x: Sequence[float | str]
    y: NDArray[np.float64]
    std: NDArray[np.float64]
    paper: NDArray[np.float64]
    position: int = 0


@dataclass(frozen=True)
class Axis:
    """What a panel says beside its numbers; `lines` are horizontal ones by their label."""

    title: str
    x: str
    y: str
    form: Literal["line", "marks", "bars", "dots"] = "line"
    scale: Literal["linear", "log", "names"] = "linear"
    smooth: int = 1
    lines: Mapping[str, float] = field(default_factory=dict)
    target: float | None = None
    note: str = ""


def draw_panels(panels: Sequence[tuple[Axis, Sequence[Series]]], across: int = 2) -> Figure:
    """Draw panels side by side and below each other, one column (3.4 in) wide."""
    across = min(across, len(panels))
    figure, grid = new_grid(len(panels), across, height=2.1 if across == 1 else 1.7)
    handles: dict[str, Artist] = {}
    for place, (axes, (axis, series)) in enumerate(zip(grid, panels, strict=True)):
        draw = _bars if axis.form == "bars" else _dots if axis.form == "dots" else _lines
        draw(axes, axis, series)
        for number, (label, value) in enumerate(axis.lines.items()):
            axes.axhline(value, color=_INK, linewidth=0.9, linestyle=_DASHES[number % 3], label=label)
        if axis.target is not None:
            axes.axhline(axis.target, color="#C00000", linewidth=0.9, linestyle=(0, (1, 2)))
        axes.set_title(f"{axis.title}{axis.note}")
        axes.set_xlabel(axis.x)
        if place % across == 0 or axis.y != panels[place - 1][0].y:
            axes.set_ylabel(axis.y)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure_legend(figure, sorted(handles.values(), key=_place_in_legend))
    return figure


def _place_in_legend(handle: Artist) -> bool:
    """Measured series first, printed values last."""
    return PRINTED in str(handle.get_label())


def _lines(axes: Axes, axis: Axis, series: Sequence[Series]) -> None:
    """Curves have few markers; the points of a sweep have one each, and hollow ones for printed numbers."""
    names = list(dict.fromkeys(x for each in series for x in each.x))
    for each in series:
        style = method_style(each.position)
        x = np.array([names.index(at) if axis.scale == "names" else float(at) for at in each.x])
        colour, sweep = style.light, axis.form == "marks"
        y = smooth(each.y, axis.smooth) if axis.smooth > 1 else each.y
        if axis.smooth > 1:
            axes.plot(x, each.y, color="#BBBBBB", linewidth=0.6, zorder=1)
        if np.isfinite(each.std).any():
            low, high = y - np.nan_to_num(each.std), y + np.nan_to_num(each.std)
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        spacing = 1 if sweep else max(1, len(x) // _MARKERS)
        first = 0 if sweep else each.position % spacing
        axes.plot(
            *(x, y),
            color=colour,
            linestyle=style.linestyle,
            linewidth=1.1,
            marker=style.marker,
            markersize=3,
            fillstyle=style.fill,
            markevery=(first, spacing),
            label=each.label,
        )
        printed = np.isfinite(each.paper)
        if sweep and printed.any():
            axes.plot(
                x[printed], each.paper[printed], style.marker, color=colour, fillstyle="none", markersize=6
            )
            axes.plot([], [], "o", color=_INK, fillstyle="none", markersize=6, label=PRINTED)
    if axis.scale == "names":
        label_categories(axes, [_text(name) for name in names])
        axes.margins(x=0.12)
    elif axis.scale == "log":
        _log_axis(axes, names)
    else:
        axes.locator_params(axis="x", nbins=5 if axis.form == "line" else 6, integer=_whole(names))


def _log_axis(axes: Axes, places: Sequence[float | str]) -> None:
    """Number the decades; more would not fit half a column."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, numticks=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.1)


def _bars(axes: Axes, axis: Axis, series: Sequence[Series]) -> None:
    """Bars side by side at every name of the x axis, with a dash where the paper prints a number."""
    names = list(dict.fromkeys(x for each in series for x in each.x))
    width = 0.8 / max(1, len(series))
    for place, each in enumerate(series):
        at = np.array([names.index(x) for x in each.x]) + (place - (len(series) - 1) / 2) * width
        spread = np.nan_to_num(each.std) if np.isfinite(each.std).any() else None
        axes.bar(
            *(at, each.y, width),
            yerr=spread,
            error_kw={"linewidth": 0.7, "capsize": 1.5},
            color=method_style(each.position).light,
            linewidth=0,
            label=each.label,
        )
        printed = np.isfinite(each.paper)
        if printed.any():
            left, right = at[printed] - 0.45 * width, at[printed] + 0.45 * width
            axes.hlines(each.paper[printed], left, right, color="black", linewidth=1.1, label=PRINTED)
    axes.grid(visible=False, axis="x")
    label_categories(axes, [_text(name) for name in names])


def _dots(axes: Axes, axis: Axis, series: Sequence[Series]) -> None:
    """A point per place, above or below zero."""
    for each in series:
        style = method_style(each.position)
        x = np.array([float(at) for at in each.x])
        axes.vlines(x, 0, each.y, color=style.light, linewidth=0.6, alpha=0.5)
        axes.plot(x, each.y, style.marker, color=style.light, markersize=2.5, label=each.label)
    axes.axhline(0, color=_INK, linewidth=0.8)
    axes.locator_params(axis="x", integer=True, nbins=5)


def _whole(places: Sequence[float | str]) -> bool:
    return all(isinstance(place, float) and place == math.floor(place) for place in places)


def _text(place: float | str) -> str:
    return place if isinstance(place, str) else f"{place:g}"
