"""Matplotlib for print: small but legible type, thin frames, text that stays text in PDF and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.core.errors import PotluckError, unknown

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png", "svg")
_INSIDE = 6  # methods whose legend has room inside
_COLUMN = 13  # lines of a legend beside the picture
WIDTH = 3.5  # inches: one column of a two-column paper
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
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.03,
    "savefig.dpi": 300,
    "text.parse_math": False,  # names from run folders are text, whatever signs they hold
}


def for_print() -> AbstractContextManager[None]:
    """The style, for as long as a block lasts; the caller's own matplotlib settings come back after it."""
    import matplotlib

    return matplotlib.rc_context(_SETTINGS)


def new_figure(width: float = WIDTH, height: float = 2.3) -> tuple[Figure, Axes]:
    """A figure with one set of axes, apart from any window or global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def new_axes(count: int, width: float = 2.4, height: float = 2.3) -> tuple[Figure, list[Axes]]:
    """A figure with several axes side by side, all of one height."""
    figure, first = new_figure(width * count + 0.6, height)
    first.remove()
    return figure, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def legend(axes: Axes) -> None:
    """The legend inside the picture, or beside it where it would cover what is drawn."""
    count = len(axes.get_legend_handles_labels()[1])
    if count > _INSIDE:
        legend_beside(axes)
    elif count:
        axes.legend()


def legend_beside(axes: Axes, handles: Sequence[Artist] | None = None) -> None:
    """The legend to the right of the picture, which becomes wider by as much and not smaller."""
    made = list(axes.get_legend_handles_labels()[0] if handles is None else handles)
    names = [str(handle.get_label()) for handle in made]
    columns = 1 + (len(names) - 1) // _COLUMN
    figure = axes.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + columns * (0.5 + 0.055 * max(map(len, names))), height)
    axes.legend(handles=made, loc="upper left", bbox_to_anchor=(1.0, 1.0), ncols=columns)


def check_output(out: str | Path) -> Path:
    """The file to write, if its ending is one that can be written."""
    file = Path(out)
    ending = file.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise unknown("figure format", ending or file.name, FORMATS)
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
