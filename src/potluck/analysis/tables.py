"""A comparison as a table: for the terminal, CSV and Markdown.

CSV has plain numbers (fractions, bytes, seconds) for other programs; the others are rounded for people.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from potluck.analysis.columns import Column, all_columns, best_rows
from potluck.analysis.comparison import Comparison, Row
from potluck.core.files import csv_cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the comparison as one table, with the columns that the terminal has room for.

    Columns that were asked for are all printed, in several tables below each other where they must be.
    """
    from rich.text import Text

    columns = all_columns(comparison)
    left_out: list[Column] = []
    if not comparison.columns:
        columns, left_out = _fitting(comparison, columns, console)
    for block in _blocks(comparison, columns, console):
        console.print(rich_table(comparison, block))
    sentences = [*legend(comparison), *comparison.notes]
    if left_out:
        names = ", ".join(column.title for column in left_out)
        sentences.append(f"No room for: {names} (a wider terminal, or --columns, shows them).")
    for sentence in sentences:
        console.print(Text(sentence, style="dim"))


def _fitting(
    comparison: Comparison, columns: list[Column], console: Console
) -> tuple[list[Column], list[Column]]:
    """The columns that fit beside each other, and those that had to go: the least telling ones first."""
    kept, gone = list(columns), list[Column]()
    while len(kept) > 1 and not _fits(comparison, kept, console):
        least = max(reversed(kept), key=lambda column: column.rank)
        kept.remove(least)
        gone.append(least)
    return kept, [column for column in columns if column in gone]


def _blocks(comparison: Comparison, columns: list[Column], console: Console) -> list[list[Column]]:
    blocks: list[list[Column]] = [[]]
    for column in columns:
        if blocks[-1] and not _fits(comparison, [*blocks[-1], column], console):
            blocks.append([])
        blocks[-1].append(column)
    return blocks


def _fits(comparison: Comparison, columns: Sequence[Column], console: Console) -> bool:
    unlimited = console.options.update_width(10_000)
    return console.measure(rich_table(comparison, columns), options=unlimited).maximum <= console.width


def rich_table(
    comparison: Comparison, columns: Sequence[Column] | None = None, title: str | None = None
) -> Table:
    """The comparison for the terminal; the best value of each column is bold."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns = all_columns(comparison) if columns is None else columns
    table = Table(title=title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("method", overflow="fold")
    for column in columns:
        table.add_column(column.title.replace(" ", "\n", 1), justify="right", no_wrap=True, vertical="bottom")
    bests = [best_rows(comparison, column) for column in columns]
    for position, row in enumerate(comparison.rows):
        cells = [
            Text(column.cell(row), style="bold" if position in best else "")
            for column, best in zip(columns, bests, strict=True)
        ]
        if row.apart and not comparison.rows[position - 1].apart:
            table.add_section()
        table.add_row(Text(row.shown), *cells)
    return table


def to_csv(comparison: Comparison) -> str:
    """All numbers of the comparison, unrounded, one line per method; an unknown number is an empty cell."""
    lines = [_csv_cells(row) for row in comparison.rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in line.items()} for line in lines)
    return out.getvalue()


def to_markdown(comparison: Comparison) -> str:
    """The comparison as a Markdown table, with its notes below."""
    columns = all_columns(comparison)
    lines = [
        "| method | " + " | ".join(column.title for column in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    bests = [best_rows(comparison, column) for column in columns]
    for position, row in enumerate(comparison.rows):
        cells = [
            f"**{column.cell(row)}**" if position in best else column.cell(row)
            for column, best in zip(columns, bests, strict=True)
        ]
        lines.append("| " + " | ".join([_markdown_escape(row.shown), *cells]) + " |")
    return "\n".join([*lines, "", *legend(comparison), *comparison.notes]) + "\n"


_BEST = {
    "validation": "test accuracy of the round that was best on validation samples",
    "test": "the round that was best on the test samples themselves",
    "last": "the last evaluated round",
}


def legend(comparison: Comparison) -> list[str]:
    """Sentences that say what the columns mean for these rows."""
    over = " and ".join(dict.fromkeys(row.spread_over for row in comparison.rows))
    sentences = [
        f"Accuracies in %; ± is the standard deviation over {over}; floats are per client and round."
    ]
    sentences.append(
        f"Best: {' or '.join(dict.fromkeys(_BEST[row.selected_by] for row in comparison.rows))}."
    )
    tests = dict.fromkeys(
        f"{row.test.test} ({row.test.pairs} pairs)"
        for row in comparison.rows
        if row.test and row.test.p is not None
    )
    if tests:
        sentences.append(
            f"p against {comparison.rows[0].label}: {', '.join(tests)}, two-sided, not corrected."
        )
    untested: dict[str, list[str]] = {}
    for row in comparison.rows:
        if row.test and row.test.p is None and not row.apart:
            untested.setdefault(row.test.note, []).append(row.label)
    for note, labels in untested.items():
        everybody = len(labels) == sum(not row.apart for row in comparison.rows) - 1
        sentences.append(f"No test{'' if everybody else ' for ' + ', '.join(labels)}: {note}.")
    return sentences


def _csv_cells(row: Row) -> dict[str, object]:
    cost, test = row.to_target, row.test
    numbers: dict[str, float | None] = {
        "accuracy": row.accuracy,
        "accuracy_std": row.accuracy_std,
        "best_accuracy": row.best,
        "best_round": row.best_round,
        "last_accuracy": row.last,
        "best_accuracy_validation": row.validation,
        "macro_f1": row.macro_f1,
        "calibration_error": row.calibration_error,
        "newcomers": row.newcomers,
        "newcomers_gain": row.newcomers_gain,
        "loss": row.loss,
        "worst_tenth": row.worst,
        "client_std": row.client_std,
        "client_gap": row.client_gap,
        "rounds_to_target": cost.rounds if cost else None,
        "bytes_to_target": cost.bytes if cost else None,
        "seconds_to_target": cost.seconds if cost else None,
        "virtual_seconds_to_target": cost.virtual_seconds if cost else None,
        "flops_to_target": cost.flops if cost else None,
        "speed_up": row.speed_up,
        "floats_up_per_client_round": row.floats_up,
        "floats_down_per_client_round": row.floats_down,
        "bytes_total": row.bytes_total,
        "seconds": row.seconds,
        "p_value": test.p if test else None,
    }
    shown = {
        key: "" if value is None or not math.isfinite(value) else value for key, value in numbers.items()
    }
    about = {"method": row.label, "seeds": " ".join(map(str, row.seeds)), "std_over": row.spread_over}
    about |= {"selected_by": row.selected_by, "set_apart": row.apart}
    return {**about, **shown, "test": test.test if test else "", "test_note": test.note if test else ""}


def _markdown_escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
