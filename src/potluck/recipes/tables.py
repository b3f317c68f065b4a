"""A reproduction to read: the paper's numbers and the measured ones side by side."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from potluck.analysis.formatting import MISSING
from potluck.core.files import csv_cell
from potluck.recipes.content import Values, merged
from potluck.recipes.figure import ABOUT as PANELS
from potluck.recipes.measures import ABOUT as MEASURES
from potluck.recipes.recipe import NO_CELL, UNPRINTED, Recipe
from potluck.recipes.reproduce import Cell, Reproduction
from potluck.recipes.scale import ABOUT as SCALES
from potluck.recipes.scale import flat_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Block = tuple[str, list[tuple[str, list[str]]]]
"""A heading, and below it columns of cells with headings of their own."""

WAITING = "…"
WIDTH = 13
LEGEND = (
    "± is the standard deviation over seeds; (2/3): two of three seeds reached the target; "
    f"{MISSING}: not reached or not measured; {WAITING}: not run yet; °: the method's mechanism did nothing. "
    "Accuracies in %."
)


def measured(cell: Cell, digits: int) -> str:
    """Return a measured cell, with as many decimals as the paper prints in its column."""
    if cell.printed == NO_CELL:
        return ""
    if not cell.values:
        return "failed" if cell.failed else WAITING
    if not cell.known:
        return MISSING
    text = f"{cell.mean:,.{digits}f}"
    if math.isfinite(cell.std):
        text += f" ± {cell.std:,.{digits}f}"
    if len(cell.known) < len(cell.values):
        text += f" ({len(cell.known)}/{len(cell.values)})"
    return text + (" *" if cell.failed else "") + (" °" if cell.idle else "")


def decimals(recipe: Recipe, column: str) -> int:
    """Return the most decimals printed in a paper's column; two where it prints none, one more for a share saved."""
    cells = [recipe.printed(row, column).partition("±")[0] for row in recipe.rows]
    means = [cell for cell in cells if cell[:1].isdigit()]
    if not means:
        return 2
    return max(len(mean.partition(".")[2]) for mean in means) + (recipe.columns[column].measure == "saved")


def blocks(table: Reproduction) -> list[Block]:
    """Per column of the table, the paper's cells and ours."""
    result: list[Block] = []
    for name in table.columns:
        cells = [table.cell(row, name) for row in table.rows]
        digits = decimals(table.recipe, name)
        measured_cells = [measured(cell, digits) for cell in cells]
        result.append((table.recipe.heading(name), [("paper", _printed(cells)), ("here", measured_cells)]))
    return result


def printed_blocks(recipe: Recipe) -> list[Block]:
    """Return the paper's table alone."""
    return [
        (recipe.heading(name), [(name, _printed([Cell(recipe.printed(row, name)) for row in recipe.rows]))])
        for name in recipe.columns
    ]


def _printed(cells: Sequence[Cell]) -> list[str]:
    return [
        "" if cell.printed in (NO_CELL, UNPRINTED) else cell.printed.replace("±", " ± ") for cell in cells
    ]


def print_blocks(labels: Sequence[str], parts: Sequence[Block], console: Console) -> None:
    """As many tables below each other as the width of the terminal asks for; a block is never torn."""
    shown: list[Block] = []
    for part in parts:
        if shown and not _fits(labels, [*shown, part], console):
            console.print(_rich(labels, shown))
            shown = []
        shown.append(part)
    console.print(_rich(labels, shown))


def _fits(labels: Sequence[str], parts: Sequence[Block], console: Console) -> bool:
    unlimited = console.options.update_width(10_000)
    return console.measure(_rich(labels, parts), options=unlimited).maximum <= console.width


def _rich(labels: Sequence[str], parts: Sequence[Block]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("method", vertical="bottom", no_wrap=True)
    for heading, columns in parts:
        above = fill(heading, WIDTH) + "\n"
        for name, _ in columns:
            style = "bold" if name == "here" else ""
            table.add_column(
                Text(above + name), justify="right", no_wrap=True, vertical="bottom", style=style
            )
            above = ""  # said once for the columns that belong together
    for position, label in enumerate(labels):
        cells = [cells[position] for _, columns in parts for _, cells in columns]
        table.add_row(Text(label), *(Text(cell) for cell in cells))
    return table


def setting_lines(recipe: Recipe) -> list[str]:
    """Return settings of all cells, then what each setting and each row adds."""
    lines = [
        "All cells:",
        *(f"  {key} = {value}" for key, value in flat_text(recipe.base).items()),
        "Settings:",
    ]
    lines += [f"  {name}: {_listed(values)}" for name, values in recipe.settings.items()]
    lines.append("Rows:")
    for label, row in recipe.rows.items():
        more = merged(row.settings, {"method": row.options}, {"small": row.small, "full": row.full})
        lines.append(f"  {label}: {row.method}{', ' if flat_text(more) else ''}{_listed(more)}")
    for scale, values in (("small", recipe.small), ("full", recipe.full)):
        lines += [f"At the {scale} scale: {_listed(values)}"] if values else []
    return lines


def panel_lines(recipe: Recipe) -> list[str]:
    """What each panel of the figure shows."""
    if recipe.figure is None:
        return []
    lines = ["Figure:"]
    for title, panel in recipe.figure.panels.items():
        shown = {"setting": panel.setting, "value": "" if panel.kind != "curves" else panel.value}
        rest = "".join(f", {name} {value}" for name, value in shown.items() if value)
        rows = f", rows {', '.join(panel.rows)}" if panel.rows else ""
        lines.append(f"  {title}: {panel.y} against {panel.x}; {PANELS[panel.kind]}{rest}{rows}")
    return lines


def _listed(values: Values) -> str:
    return ", ".join(f"{key} = {value}" for key, value in flat_text(values).items())


PICKED = {
    "test": "Best rounds are picked on the test samples themselves, as in the paper: they flatter every row.",
    "validation": "Best rounds are picked on validation samples.",
    "last": "The last evaluated round counts as the best.",
    "auto": "Best rounds are picked on validation samples where there are some, else on the test samples.",
}


def scale_lines(table: Reproduction) -> list[str]:
    """Return what to know before comparing: the scale, how rounds are picked, settings unlike the paper's."""
    if table.recipe.counted:
        return [
            "Counted at the paper's size in two rounds on blank samples, at every scale: nothing is learned."
        ]
    lines = [f"Scale {table.scale}: {SCALES[table.scale]}."]
    if any(table.recipe.columns[name].measure == "best" for name in table.columns):
        selections = dict.fromkeys(experiment.evaluate.select for experiment in table.work.values())
        lines += [PICKED[selection] for selection in selections]
    lines += target_lines(table)
    if table.differs:
        lines.append("Not as in the paper (paper → here): " + "; ".join(_difference(table)) + ".")
    return lines


def target_lines(table: Reproduction) -> list[str]:
    """Targets that are not the paper's at this scale."""
    columns = {name: table.recipe.columns[name] for name in table.columns}
    moved = [
        f"{table.recipe.heading(name)} {100 * column.target:g} → {100 * scaled:g} %"
        for name, column in columns.items()
        if column.target and (scaled := column.target_at(table.scale)) and scaled != column.target
    ]
    return [f"Targets that are not the paper's (paper → here): {'; '.join(moved)}."] if moved else []


def _difference(table: Reproduction) -> list[str]:
    return [
        f"{name} " + ", ".join(f"{paper} → {actual}" for paper, actual in pairs)
        for name, pairs in table.differs.items()
    ]


def mechanism_lines(table: Reproduction) -> list[str]:
    """Return whether each row's mechanism acted, for methods that record it: the values of all its runs."""
    lines = []
    for row in table.rows:
        activities = [
            (key, table.activity[key]) for key in table.work if key[0] == row and key in table.activity
        ]
        if not activities:
            continue
        mechanism, values = activities[0][1].mechanism, [activity.value for _, activity in activities]
        span = " to ".join(f"{value:.3g}" for value in dict.fromkeys((min(values), max(values))))
        idle = [f"{setting}, seed {seed}" for (_, setting, seed), activity in activities if not activity.acts]
        did = f"did nothing on {'; '.join(idle)}" if idle else "acted"
        lines.append(f"Mechanism of {row} {did}: {mechanism.note} {span} ({mechanism.about}).")
    return lines


def failure_lines(table: Reproduction) -> list[str]:
    """Return what went wrong, one line per run."""
    return [
        f"Failed: {row}, {setting}, seed {seed}: {reason}"
        for (row, setting, seed), reason in table.failures.items()
    ]


def to_markdown(table: Reproduction, command: str = "") -> str:
    """Return the whole reproduction as a page."""
    parts = blocks(table)
    heads = [f"{heading}, {name}" for heading, columns in parts for name, _ in columns]
    lines = [f"# {table.recipe.title}", "", table.recipe.paper, ""]
    lines += [f"`{command}`", ""] if command else []
    if table.recipe.figure is not None:
        lines += [f"![{table.recipe.title}](figure.png)", "", "The figure's data are in `figure.csv`.", ""]
    lines += [*scale_lines(table), "", _line(["method", *heads]), "|---|" + "---:|" * len(heads)]
    for position, row in enumerate(table.rows):
        cells = [cells[position] for _, columns in parts for _, cells in columns]
        lines.append(_line([row, *cells]))
    lines += ["", LEGEND, "", *(f"* {line}" for line in (*mechanism_lines(table), *failure_lines(table)))]
    lines += ["", "Columns:", "", *(f"* {line}" for line in column_lines(table.recipe, table.columns))]
    return "\n".join([*lines, "", "Notes:", "", *(f"* {note}" for note in table.recipe.notes)]) + "\n"


def column_lines(recipe: Recipe, names: Sequence[str]) -> list[str]:
    """Return what each column measures."""
    return [
        f"{recipe.heading(name)}: {MEASURES[column.measure]}"
        + (f" (target {100 * column.target:g} %)" if column.target else "")
        + (", right answers of all clients over all their test samples" if column.field != "accuracy" else "")
        for name in names
        if (column := recipe.columns[name])
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def to_csv(table: Reproduction) -> str:
    """Return one line per cell, numbers unrounded; accuracies in % as the papers print them."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=_FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in record.items()} for record in _records(table))
    return out.getvalue()


def to_json(table: Reproduction, settings: Sequence[str] = ()) -> str:
    """Everything, for other programs; what is not known is null."""
    content = {
        "recipe": table.recipe.name,
        "title": table.recipe.title,
        "paper": table.recipe.paper,
        "scale": table.scale,
        "set": list(settings),
        "seeds": list(table.seeds),
        "differences": {
            name: [{"paper": paper, "here": actual} for paper, actual in pairs]
            for name, pairs in table.differs.items()
        },
        "cells": [
            {key: None if value == "" else value for key, value in record.items()}
            for record in _records(table)
        ],
        "mechanisms": [
            {
                "row": row,
                "setting": setting,
                "seed": seed,
                "note": activity.mechanism.note,
                "value": activity.value,
                "idle": activity.mechanism.idle,
                "acts": activity.acts,
            }
            for (row, setting, seed), activity in table.activity.items()
        ],
        "failures": [
            {"row": row, "setting": setting, "seed": seed, "reason": reason}
            for (row, setting, seed), reason in table.failures.items()
        ],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


_FIELDS = ["row", "column", "setting", "measure", "target", "paper", "paper_std", "here", "here_std", "runs"]
_FIELDS += ["reached", "state"]


def _records(table: Reproduction) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    for row in table.rows:
        for name in table.columns:
            cell, column = table.cell(row, name), table.recipe.columns[name]
            if cell.printed == NO_CELL:
                continue
            mean, _, std = cell.printed.partition("±")
            state = "measured" if cell.values else "failed" if cell.failed else "not run"
            records.append(
                {
                    "row": row,
                    "column": name,
                    "setting": column.setting,
                    "measure": column.measure,
                    "target": column.target_at(table.scale) or "",
                    "paper": "" if mean in ("-", UNPRINTED) else float(mean),
                    "paper_std": float(std) if std else "",
                    "here": cell.mean if cell.known else "",
                    "here_std": cell.std if math.isfinite(cell.std) else "",
                    "runs": len(cell.values),
                    "reached": len(cell.known),
                    "state": state,
                }
            )
    return records
