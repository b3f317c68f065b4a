"""The numbers behind a recipe's figure: from cells and run folders to points, and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import numpy as np

from potluck.analysis.clients import client_differences
from potluck.analysis.curves import Band, band, band_of_curves, client_curve, loss_increase, note_curves
from potluck.core.errors import PotluckError, unknown
from potluck.core.files import csv_cell, read_text
from potluck.recipes.figure import OF_NETWORKS, Kind, Panel
from potluck.recipes.recipe import NO_CELL
from potluck.recipes.reproduce import Reproduction, run_path
from potluck.runs.folder import SUMMARY
from potluck.runs.read import read_run
from potluck.runs.run import Curve, Run

LOSS = "train_ce"
"""What a loss increase is of."""


@dataclass(frozen=True)
class Point:
    """One number of a figure: its panel and line (or bar, or set), its place, its value and spread over seeds.

    `paper` is the number printed for it, as printed; `label` the class of a point of a t-SNE; nan is a value that was
    not measured.
    """

    panel: str
    series: str
    x: float | str
    y: float
    std: float = math.nan
    paper: str = ""
    label: str = ""


Panels = Callable[[Reproduction, Panel, str, Path], Iterator[Point]]


@dataclass
class Points:
    """The points of a figure; a sentence for each panel without any, and for each that cannot be made."""

    points: list[Point] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def figure_points(table: Reproduction, out: Path) -> Points:
    """Return the points of every panel."""
    points = Points()
    assert table.recipe.figure is not None
    for title, panel in table.recipe.figure.panels.items():
        try:
            own = list(_MAKERS[panel.kind](table, panel, title, out))
        except PotluckError as error:
            points.problems.append(f"Panel {title!r} is not drawn: {error}")
            continue
        if any(math.isfinite(point.y) for point in own):
            points.points += own
        else:
            points.empty.append(f"Panel {title!r} is empty: nothing was measured yet, or no target reached.")
    return points


def _sweep(table: Reproduction, panel: Panel, title: str, out: Path) -> Iterator[Point]:
    over_rows = not all(name in table.recipe.columns for name in panel.points.values())
    lines = panel.columns if over_rows else (panel.rows or table.rows)
    for line in lines:
        for x, name in panel.points.items():
            row, column = (name, line) if over_rows else (line, name)
            if row in table.rows and column in table.columns:
                label = table.recipe.heading(line) if over_rows else line
                yield from _cell(table, row, column, Point(title, label, _place(x), math.nan))


def _bars(table: Reproduction, panel: Panel, title: str, out: Path) -> Iterator[Point]:
    for row in panel.rows or table.rows:
        for column in panel.columns:
            if row in table.rows and column in table.columns:
                place = Point(title, row, table.recipe.heading(column), math.nan)
                yield from _cell(table, row, column, place)


def _cell(table: Reproduction, row: str, column: str, place: Point) -> Iterator[Point]:
    cell = table.cell(row, column)
    if cell.printed != NO_CELL:
        printed = cell.printed if cell.printed[:1].isdigit() else ""
        yield Point(place.panel, place.series, place.x, cell.mean, cell.std, printed)


def _curves(table: Reproduction, panel: Panel, title: str, out: Path) -> Iterator[Point]:
    for row, runs in _runs(table, panel, out):
        if not any(run.has(LOSS if panel.value == "loss_increase" else panel.value) for run in runs):
            raise PotluckError(f"No round of {row} has a value {panel.value!r}.")
        yield from _line(_band(runs, panel), title, row, _factor(panel.value))


def _band(runs: Sequence[Run], panel: Panel) -> Band:
    if panel.value == "loss_increase":
        return band_of_curves([loss_increase(run.curve(LOSS, panel.along)) for run in runs])
    return band(runs, panel.value, panel.along)


def _groups(table: Reproduction, panel: Panel, title: str, out: Path) -> Iterator[Point]:
    for row, runs in _runs(table, panel, out):
        for name, clients in panel.groups.items():
            curves = [curve for run in runs if len(curve := _group_curve(run, clients, panel.along))]
            series = f"{row}, {name}" if name else row
            yield from _line(band_of_curves(curves), title, series, 100.0)


def _group_curve(run: Run, clients: Sequence[int], along: str) -> Curve:
    """Return the mean accuracy of some clients in the rounds in which all those that were ever tested are."""
    curves = [curve for client in clients if len(curve := client_curve(run, client))]
    mean = band_of_curves(curves)
    ends = dict(zip(run.axis("rounds").tolist(), run.axis(along).tolist(), strict=True))
    return Curve(mean.round, np.array([ends[number] for number in mean.round.tolist()]), mean.mean)


def _clients(table: Reproduction, panel: Panel, title: str, out: Path) -> Iterator[Point]:
    for _, runs in _runs(table, panel, out):
        for client in runs[0].client_results:
            if not panel.clients or client.index in panel.clients:
                name = f"{client.index}: {client.architecture}" if client.architecture else str(client.index)
                yield from _curve_points(client_curve(runs[0], client.index), title, name, 100.0)


def _notes(table: Reproduction, panel: Panel, title: str, out: Path) -> Iterator[Point]:
    for row, runs in _runs(table, panel, out):
        if panel.value not in runs[0].client_notes:
            raise unknown(f"note of {row}", panel.value, runs[0].client_notes or ["(it has none)"])
        for client, curve in note_curves(runs[0], panel.value).items():
            if not panel.clients or client in panel.clients:
                yield from _curve_points(curve, title, f"client {client}", 1.0)


def _difference(table: Reproduction, panel: Panel, title: str, out: Path) -> Iterator[Point]:
    """The difference of each client, by its number; over seeds the mean."""
    runs = dict(_runs(table, panel, out))
    if len(runs) < 2:
        return
    first, second = panel.rows
    differences: dict[int, list[float]] = {}
    for each in client_differences(runs[first], runs[second]).clients:
        differences.setdefault(each.client.index, []).append(100 * each.difference)
    for client, values in sorted(differences.items()):
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        yield Point(title, f"{first} − {second}", float(client), float(np.mean(values)), spread)


def _samples(table: Reproduction, panel: Panel, title: str, out: Path) -> Iterator[Point]:
    """Samples of each class (the series) that each client holds; none are left out."""
    for _, runs in _runs(table, panel, out):
        counts = runs[0].class_counts
        if counts is not None:
            for client, label in np.argwhere(counts).tolist():
                yield Point(title, str(label), float(client), float(counts[client, label]))


def _networks(table: Reproduction, panel: Panel, title: str, out: Path) -> Iterator[Point]:
    from potluck.recipes.network_points import network_points

    for row, runs in _runs(table, panel, out):
        yield from network_points(panel, title, row, runs[0])


def _runs(table: Reproduction, panel: Panel, out: Path) -> Iterator[tuple[str, list[Run]]]:
    """The finished runs of each row of a panel whose folders are there, a run per seed."""
    for row in panel.rows or table.rows:
        keys = [(row, panel.setting, seed) for seed in table.seeds]
        paths = [run_path(out, key) for key in keys if key in table.values]
        if runs := [read_run(path) for path in paths if (path / SUMMARY).exists()]:
            yield row, runs


def _line(line: Band, panel: str, series: str, factor: float) -> Iterator[Point]:
    for x, y, std in zip(line.x.tolist(), line.mean.tolist(), line.std.tolist(), strict=True):
        yield Point(panel, series, x, factor * y, factor * std if line.runs > 1 else math.nan)


def _curve_points(curve: Curve, panel: str, series: str, factor: float) -> Iterator[Point]:
    for x, y in zip(curve.x.tolist(), curve.y.tolist(), strict=True):
        yield Point(panel, series, x, factor * y)


def _factor(value: str) -> float:
    return 100.0 if value.startswith("accuracy") else 1.0


def _place(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


_MAKERS: dict[Kind, Panels] = {
    "sweep": _sweep,
    "curves": _curves,
    "bars": _bars,
    "clients": _clients,
    "groups": _groups,
    "notes": _notes,
    "difference": _difference,
    "samples": _samples,
    **dict.fromkeys(OF_NETWORKS, _networks),
}


def to_csv(points: Sequence[Point]) -> str:
    """Write a line per point; numbers unrounded, nothing where there is no number."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in fields(Point)])
    for point in points:
        writer.writerow(["" if value != value else csv_cell(value) for value in astuple(point)])
    return out.getvalue()


def read_points(file: Path) -> list[Point]:
    """Read what `to_csv` wrote."""
    points = []
    for line in csv.DictReader(io.StringIO(read_text(file))):
        names = {name: line[name].removeprefix("'") for name in ("panel", "series", "x")}
        y, std = (float(line[name]) if line[name] else math.nan for name in ("y", "std"))
        last = line["paper"], line["label"]
        points.append(Point(names["panel"], names["series"], _place(names["x"]), y, std, *last))
    return points
