"""Style of figures: colours, markers, options, Matplotlib settings, legends and axis labels."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from potluck.core.errors import PotluckError, unknown

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B6470")
_DARK = ("#4FA8E0", "#FF8A4C", "#2CC295", "#E39AC6", "#F2B632", "#9AD8FF", "#C3C9D2")
_FILLS = ("full", "none", "left", "top")  # of markers without a line
# (plotly, matplotlib) names of the same style
_DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"), ("dashdot", "-."))
_MARKERS = (
    ("circle", "o"),
    ("square", "s"),
    ("diamond", "D"),
    ("triangle-up", "^"),
    ("triangle-down", "v"),
    ("x", "X"),
    ("star", "*"),
)


@dataclass(frozen=True)
class MethodStyle:
    """Colours, line and marker of a method, on screen (plotly) and in print (matplotlib)."""

    light: str
    dark: str
    dash: str
    symbol: str
    linestyle: str
    marker: str
    fill: str


def method_style(position: int) -> MethodStyle:
    """Return the style of the method at `position`; colours repeat after seven, with a different line each time."""
    dash, linestyle = _DASHES[position % len(_DASHES)]
    symbol, marker = _MARKERS[position % len(_MARKERS)]
    colour = position % len(_LIGHT)
    fill = _FILLS[position // len(_MARKERS) % len(_FILLS)]
    return MethodStyle(_LIGHT[colour], _DARK[colour], dash, symbol, linestyle, marker, fill)


def class_colours(classes: Sequence[int]) -> dict[int, Any]:
    """Return a colour for each class: ten distinct ones, or a gradient for more classes."""
    from matplotlib import colormaps

    few = len(classes) <= 10
    shades = colormaps["tab10"] if few else colormaps["turbo"]
    return {label: shades(at if few else at / (len(classes) - 1)) for at, label in enumerate(classes)}


@dataclass(frozen=True)
class FigureOptions:
    """Options of a figure; `potluck.report.figures.plot` describes each."""

    x: str = "rounds"
    target: float | None = None
    smooth: int = 1
    reference: str | None = None
    field: str | None = None
    client: int | None = None
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)


def name_list(text: str | None) -> list[str]:
    """Split the comma list of `--order`."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


def name_map(texts: Sequence[str] | None) -> dict[str, str]:
    """Read `--names`: comma lists of `name=label`."""
    names: dict[str, str] = {}
    for part in ",".join(texts or ()).split(",") if texts else ():
        name, equals, label = (each.strip() for each in part.rpartition("="))
        if not (equals and name and label):
            raise PotluckError(f"--names {part.strip()!r} is not a pair; write --names fedgh=FedGH,fd=FD.")
        names[name] = label
    return names


FORMATS = ("pdf", "png", "svg")
WIDTH = 3.4
"""Inches: one column of a two-column paper."""
_INSIDE = 6  # methods whose legend fits inside the axes
_LABEL = 46  # characters of a legend line
_LINE = 0.13  # inches from one tick label to the next
_SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "svg.fonttype": "none",
    "svg.hashsalt": "potluck",  # the same figure gives the same bytes
    "savefig.bbox": None,  # the size of the figure is the size of the file
    "figure.constrained_layout.w_pad": 0.03,
    "figure.constrained_layout.h_pad": 0.03,
    "savefig.dpi": 300,
    "text.parse_math": False,  # names from run folders are not formulas
}


def print_style() -> AbstractContextManager[None]:
    """Apply the style for the length of a block, and restore the caller's matplotlib settings after it."""
    import matplotlib

    return matplotlib.rc_context(_SETTINGS)


def new_figure(width: float = WIDTH, height: float = 2.3) -> tuple[Figure, Axes]:
    """Make a figure with one set of axes, independent of any window or global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def new_axes(count: int, width: float = WIDTH, height: float = 2.3) -> tuple[Figure, list[Axes]]:
    """Make a figure with `count` axes side by side that share the y axis."""
    figure, first = new_figure(width, height)
    first.remove()
    return figure, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def new_grid(count: int, across: int, height: float) -> tuple[Figure, list[Axes]]:
    """Make a figure of `count` axes in rows of `across`, each row `height` inches high."""
    rows = -(-count // across)
    figure, first = new_figure(height=height * rows)
    first.remove()
    grid = figure.subplots(rows, across, squeeze=False).flatten().tolist()
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def legend(axes: Axes) -> None:
    """Put the legend inside the axes, or above them where it would cover the curves."""
    count = len(axes.get_legend_handles_labels()[1])
    if count > _INSIDE:
        legend_above(axes)
    elif count:
        axes.legend()


def legend_above(axes: Axes, handles: Sequence[Artist] | None = None) -> None:
    """Put the legend above the axes in as many columns as fit; the figure becomes higher, not wider."""
    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    figure_legend(_figure_of(axes), shown)


def figure_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Put a legend of these lines and bars above all axes; the figure becomes higher, not wider."""
    shown = list(handles)
    if not shown:
        return
    labels = [textwrap.fill(str(handle.get_label()), _LABEL) for handle in shown]
    width, height = figure.get_size_inches()
    for columns in range(min(len(shown), 5), 0, -1):
        box = figure.legend(
            shown, labels, loc="outside upper center", ncols=columns, columnspacing=1.0, handlelength=1.8
        )
        size = box.get_window_extent()
        if size.width <= width * figure.dpi or columns == 1:
            break
        box.remove()
    figure.set_size_inches(width, height + size.height / figure.dpi)


def label_categories(axes: Axes, names: Sequence[str], step: int = 1) -> None:
    """Label every `step`-th place of the x axis; names that would overlap are slanted and the figure becomes higher."""
    figure = _figure_of(axes)
    places = [step * place for place in range(len(names))]
    axes.set_xticks(places, names)
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    if all(left.x1 + 4 < right.x0 for left, right in pairwise(boxes)):
        return
    upright = len(names) > 12
    for label in axes.get_xticklabels():
        label.set(rotation=90 if upright else 40, ha="right", va="center" if upright else "top")
        label.set_rotation_mode("anchor")
    width, height = figure.get_size_inches()
    text = max(box.width for box in boxes) / figure.dpi
    figure.set_size_inches(width, height + (text if upright else 0.65 * text))


def log_scale(axes: Axes, name: Literal["x", "y"] = "x", form: str = "{x:g}") -> None:
    """Make an axis logarithmic, its ticks in plain numbers: decades, and 2 and 5 times them below two decades.

    Matplotlib's own tick labels are formulas, which `text.parse_math` shows as their source.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    axis = axes.xaxis if name == "x" else axes.yaxis
    (axes.set_xscale if name == "x" else axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0), numticks=8))
    axis.set_major_formatter(form)
    axis.set_minor_formatter(NullFormatter())


def tick_step(count: int, inches: float) -> int:
    """Return the step between labels so that `count` lines of text fit an axis of this length."""
    return max(1, -int(-count * _LINE // inches))


def _figure_of(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def check_output(out: str | Path) -> Path:
    """Return the file to write if its format is supported."""
    file = Path(out)
    suffix = file.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise unknown("figure format", suffix or file.name, FORMATS)
    return file


def save(figure: Figure, file: Path) -> Path:
    """Write the figure without a date, so that the same runs give the same file."""
    dateless = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata=dateless[file.suffix.removeprefix(".").lower()])
    except OSError as error:
        raise PotluckError(f"Cannot write the figure to {str(file)!r}: {error.strerror}.") from None
    return file
