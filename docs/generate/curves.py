"""Draw the accuracy curves of the full scale's rows, with bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "figures"
WINDOW = 5
"""Evaluations that a point is the mean of, where only some of the clients take part in a round."""


def curve_files(full: Any) -> list[Path]:
    """The figures of a table: one for each setting of which a row was run."""
    from potluck.recipes.recipe import slug

    settings = dict.fromkeys(setting for _, setting, _ in full.values)
    return [FOLDER / f"full-{full.recipe.name}-{slug(setting)}.svg" for setting in settings]


def write_figures(results: Path) -> None:
    """Draw the curves of every trained table of the full scale."""
    from potluck.recipes.recipe import find_recipe
    from potluck.recipes.store import read_cells, read_curves, stored_table

    file = results / "full.csv"
    cells, curves = read_cells(file), read_curves(file)
    for name in dict.fromkeys(cell.recipe for cell in cells):
        recipe = find_recipe(name)
        if recipe.counted:
            continue
        full = stored_table(recipe, "full", cells, curves)
        settings = dict.fromkeys(setting for _, setting, _ in full.values)
        for setting, path in zip(settings, curve_files(full), strict=True):
            _draw(full, setting, [cell for cell in cells if cell.recipe == name], curves, path)


def _draw(full: Any, setting: str, cells: Sequence[Any], curves: Any, path: Path) -> None:
    from generate.benchmark.figures import COLOURS, new_axes, save

    recipe = full.recipe
    names = [name for name, column in recipe.columns.items() if column.setting == setting]
    figure, axes = new_axes(7.0, 4.0)
    window = WINDOW if any(each.schedule.participation < 1 for each in full.work.values()) else 1
    colours = iter(COLOURS * 2)
    for row in recipe.rows:
        points_of = {
            cell.experiment: curves[cell.experiment]["curve"]
            for cell in cells
            if cell.row == row and cell.column in names and cell.experiment in curves
        }
        if points_of:
            _line(axes, row, list(points_of.values()), window, next(colours))
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy, %" + (f", mean of {window} evaluations" if window > 1 else ""))
    axes.set_title(f"{recipe.heading(names[0])}", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    save(figure, path)


def _line(axes: Any, label: str, curves: Sequence[Any], window: int, colour: str) -> None:
    """The mean over seeds with a band from the least to the largest."""
    length = min(len(curve) for curve in curves)
    rounds = [point[0] for point in curves[0][:length]]
    values = np.array([[100 * point[1] for point in curve[:length]] for curve in curves])
    smooth = np.array([running_mean(row, window) for row in values])
    axes.plot(rounds, smooth.mean(axis=0), color=colour, label=label)
    if len(curves) > 1:
        axes.fill_between(rounds, smooth.min(axis=0), smooth.max(axis=0), color=colour, alpha=0.2)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and of those before it, as many as the window holds."""
    return [float(np.mean(values[max(0, end - window) : end])) for end in range(1, len(values) + 1)]
