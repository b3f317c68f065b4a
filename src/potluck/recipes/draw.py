"""Draw a recipe's figure from its points, and write it beside the reproduction's tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from potluck.recipes.figure import Kind, Panel
from potluck.recipes.points import Point, Points, figure_points, to_csv
from potluck.recipes.recipe import Recipe
from potluck.recipes.reproduce import Reproduction
from potluck.runs.folder import write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from potluck.report.panels import Axis, Form, Series

STEM = "figure"
PICTURES = ("pdf", "png")

_FORMS: dict[Kind, Form] = {
    "sweep": "marks",
    "bars": "bars",
    "cka-stages": "bars",
    "difference": "dots",
    "samples": "circles",
    "cka": "heat",
    "tsne": "scatter",
    "vectors": "scatter",
}


_VECTORS = ("mean over the clients", "", "sent by the server")
"""Places of markers: circles for what clients have, diamonds for what the server sends, as in FedL2G's figure."""


def write_figure(table: Reproduction, out: Path) -> Points:
    """Write `figure.pdf`, `figure.png` and `figure.csv` to a folder; return what they show and what they lack."""
    from potluck.report.style import print_style, save

    points = figure_points(table, out)
    if points.points:
        write_files(out, {f"{STEM}.csv": to_csv(points.points)})
        with print_style():
            figures = draw_points(table.recipe, points.points)
            for suffix in PICTURES:
                save(figures, out / f"{STEM}.{suffix}")
    return points


def draw_points(recipe: Recipe, points: Sequence[Point]) -> Figure:
    """Draw a recipe's figure from its points; panels without points are left out."""
    from potluck.report.panels import draw_panels

    assert recipe.figure is not None
    panels = []
    shown = [row for row in recipe.rows if any(point.series == row for point in points)]
    for title, panel in recipe.figure.panels.items():
        own = [point for point in points if point.panel == title]
        if own:
            names = [*_VECTORS] if panel.kind == "vectors" else shown
            panels.append((_axis(panel, title, own), _series(own, names)))
    return draw_panels(panels, recipe.figure.across)


def _axis(panel: Panel, title: str, points: Sequence[Point]) -> Axis:
    from potluck.report.panels import Axis

    return Axis(
        title=title,
        x=panel.x,
        y=panel.y,
        form=_FORMS.get(panel.kind, "line"),
        scale=panel.scale,
        smooth=panel.smooth,
        lines=panel.lines,
        target=None if panel.target is None else 100 * panel.target,
        note=_share(points) if panel.kind == "difference" else "",
    )


def _share(points: Sequence[Point]) -> str:
    """The share of clients that gain, as the paper's text gives it."""
    return f": {100 * sum(point.y > 0 for point in points) / len(points):.0f} % better"


def _series(points: Sequence[Point], rows: Sequence[str]) -> list[Series]:
    """The lines of a panel; a row has the same colour and marker in all panels."""
    from potluck.report.panels import Series

    series = []
    labels = list(dict.fromkeys(point.series for point in points))
    for label in labels:
        own = [point for point in points if point.series == label]
        series.append(
            Series(
                label,
                [point.x for point in own],
                np.array([point.y for point in own]),
                np.array([point.std for point in own]),
                np.array([_printed(point.paper) for point in own]),
                rows.index(label) if label in rows else labels.index(label),
                [point.label for point in own],
            )
        )
    return series


def _printed(text: str) -> float:
    number = text.partition("±")[0]
    return float(number) if number[:1].isdigit() else math.nan
