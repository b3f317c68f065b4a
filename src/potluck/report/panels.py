"""Draw a figure of several panels from plain numbers: lines, bars and points, with a common legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from potluck.analysis.curves import smooth
from potluck.report.style import class_colours, figure_legend, label_categories, method_style, new_grid

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PRINTED = "printed"
"""What the legend says of values that are the paper's."""

_MARKERS = 6  # along a line
_NUMBERED = 60  # points of a scatter that are named
_INK = "#444444"
_DASHES: tuple[tuple[int, tuple[int, ...]], ...] = ((0, (4, 2)), (0, (1, 1)), (0, (4, 1, 1, 1)))


Form = Literal["line", "marks", "bars", "dots", "circles", "heat", "scatter"]


@dataclass(frozen=True)
class Series:
    """One line, set of bars or set of points: places, values, spreads, and the numbers printed in the paper."""

    label: str
    x: Sequence[float | str]
    y: NDArray[np.float64]
    std: NDArray[np.float64]
    paper: NDArray[np.float64]
    position: int = 0
    labels: Sequence[str] = ()
    """The class of each point of a scatter."""


@dataclass(frozen=True)
class Axis:
    """What a panel says beside its numbers; `lines` are horizontal ones by their label."""

    title: str
    x: str
    y: str
    form: Form = "line"
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
        _DRAW.get(axis.form, _lines)(axes, axis, series)
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
    heat = [axes for axes, (axis, _) in zip(grid, panels, strict=True) if axis.form == "heat"]
    if heat:
        figure.colorbar(heat[0].images[0], ax=heat, label="linear CKA", shrink=0.6)
    if len(handles) > 1 or panels[0][0].form != "dots":  # the y axis says what single dots are
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
    label_categories(axes, [_text(name) for name in names] if len(names) > 1 else [""])


def _dots(axes: Axes, axis: Axis, series: Sequence[Series]) -> None:
    """A point per place, above or below zero."""
    for each in series:
        style = method_style(each.position)
        x = np.array([float(at) for at in each.x])
        axes.vlines(x, 0, each.y, color=style.light, linewidth=0.6, alpha=0.5)
        axes.plot(x, each.y, style.marker, color=style.light, markersize=2.5, label=each.label)
    axes.axhline(0, color=_INK, linewidth=0.8)
    axes.locator_params(axis="x", integer=True, nbins=5)


def _circles(axes: Axes, axis: Axis, series: Sequence[Series]) -> None:
    """A circle per client (x) and class (series) whose area is the number of samples."""
    most = max(each.y.max() for each in series)
    clients = max(float(x) for each in series for x in each.x) + 1
    classes = max(int(each.label) for each in series) + 1
    room = 72 * 1.3 / max(clients, classes)  # points between two circles in half a column
    for each in series:
        x = np.array([float(at) for at in each.x])
        sizes = max(2.0, 1.2 * room) ** 2 * each.y / most
        place = np.full(len(x), int(each.label))
        axes.scatter(x, place, s=sizes, color=method_style(0).light, alpha=0.75, linewidths=0)
    axes.set_xlim(-1, clients)
    axes.set_ylim(-1, classes)
    axes.locator_params(integer=True, nbins=5)


def _heat(axes: Axes, axis: Axis, series: Sequence[Series]) -> None:
    """A square per pair, between 0 and 1; names are shortened to what stands before the colon."""
    values = np.stack([each.y for each in series])
    axes.imshow(values, cmap="cividis", vmin=0, vmax=1)
    axes.grid(visible=False)
    names = [each.label.partition(":")[0] for each in series]
    step = 1 if len(names) <= 5 else 3
    axes.set_xticks(range(0, len(names), step), names[::step])
    axes.set_yticks(range(0, len(names), step), names[::step])


def _scatter(axes: Axes, axis: Axis, series: Sequence[Series]) -> None:
    """A point per vector: the marker is the set; the colour its class, or the set where there is one class.

    A few points have the number of their class beside them.
    """
    classes = sorted({int(label) for each in series for label in each.labels})
    colours = class_colours(classes) if len(classes) > 1 else {}
    numbered = colours and sum(len(each.y) for each in series) <= _NUMBERED
    for each in series:
        style = method_style(each.position)
        shades = [colours[int(label)] for label in each.labels] if colours else style.light
        x = [float(at) for at in each.x]
        axes.scatter(x, each.y, c=shades, marker=style.marker, s=14, linewidths=0)
        shade = "#555555" if colours else style.light
        axes.plot([], [], style.marker, color=shade, label=each.label)
        for place in zip(x, each.y, each.labels, strict=True) if numbered else ():
            axes.annotate(place[2], place[:2], (2, 2), textcoords="offset points", fontsize=5)
    axes.margins(0.12)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


_DRAW: dict[Form, Callable[[Axes, Axis, Sequence[Series]], None]] = {
    "bars": _bars,
    "dots": _dots,
    "circles": _circles,
    "heat": _heat,
    "scatter": _scatter,
}


def _whole(places: Sequence[float | str]) -> bool:
    return all(isinstance(place, float) and place == math.floor(place) for place in places)


def _text(place: float | str) -> str:
    return place if isinstance(place, str) else f"{place:g}"
