"""Write comparison tables for the terminal, CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from potluck.analysis.columns import COLUMNS, Column, best_rows, selected_columns
from potluck.analysis.comparison import Comparison, ComparisonRow
from potluck.analysis.significance import holm, paired_test
from potluck.core.files import csv_cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


SIGNIFICANCE_LEVEL = 0.05
MARKS = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}


def to_latex(comparison: Comparison, caption: str = "", label: str = "") -> str:
    """Write the comparison as a LaTeX tabular (needs the booktabs package); with a caption or a label, as a table.

    Bold is the best of a column; for accuracy also every row that a paired test, corrected by Holm, does not show to
    be below the best. Underlined is the best of the others.
    """
    columns = selected_columns(comparison)
    head = " & ".join(["method", *(latex_escape(column.title) for column in columns)])
    marks = [_marks(comparison, column) for column in columns]
    lines = [r"\begin{tabular}{l" + "r" * len(columns) + "}", r"\toprule", head + r" \\", r"\midrule"]
    for position, row in enumerate(comparison.rows):
        cells = [
            MARKS[mark.get(position, "")] % latex_escape(column.cell(row))
            for column, mark in zip(columns, marks, strict=True)
        ]
        lines.append(" & ".join([latex_escape(row.display_label), *cells]) + r" \\")
    tabular = "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"
    if not caption and not label:
        return tabular
    captions = [rf"\caption{{{latex_escape(caption)}}}"] if caption else []
    labels = [rf"\label{{{label}}}"] if label else []
    return (
        "\n".join([r"\begin{table}", r"\centering", *captions, *labels, tabular.rstrip(), r"\end{table}"])
        + "\n"
    )


def _marks(comparison: Comparison, column: Column) -> dict[int, str]:
    """Return the best and second best rows of a column; none where all are equal or the column has no best value."""
    if column.value is None or not column.best:
        return {}
    sign = 1 if column.best == "max" else -1
    values = {
        position: sign * column.value(row)
        for position, row in enumerate(comparison.rows)
        if not row.incomparable and math.isfinite(column.value(row))
    }
    if len(values) < 2 or math.isclose(min(values.values()), max(values.values()), rel_tol=1e-9):
        return {}
    first = _equal_to_best(values)
    if column is COLUMNS["accuracy"]:
        first |= _not_below_best(comparison, values)
    remaining = {position: value for position, value in values.items() if position not in first}
    second = _equal_to_best(remaining)
    return {**dict.fromkeys(first, "best"), **dict.fromkeys(second, "second")}


def _equal_to_best(values: dict[int, float]) -> set[int]:
    best = max(values.values(), default=math.nan)
    return {position for position, value in values.items() if math.isclose(value, best, rel_tol=1e-9)}


def _not_below_best(comparison: Comparison, values: dict[int, float]) -> set[int]:
    """Return the rows that no test shows to be below the best; none where no test was possible."""
    best = max(values, key=lambda position: values[position])
    groups = comparison.groups
    tests = {
        position: paired_test(groups[position].counted_runs, groups[best].counted_runs).p
        for position in values
        if position != best
    }
    corrected = holm({str(position): p for position, p in tests.items() if p is not None})
    behind = {int(position) for position, p in corrected.items() if p < SIGNIFICANCE_LEVEL}
    return set(tests) - behind if corrected else set()


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {character: "\\" + character for character in "&%$#_{}"}
_LATEX |= {"±": r"$\pm$", "×": r"$\times$", "–": "--", "<": "$<$", ">": "$>$", "†": r"$\dagger$"}


def latex_escape(value: str) -> str:
    """Escape text for LaTeX."""
    return "".join(_LATEX.get(character, character) for character in value)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the comparison as one table, with the columns that fit the terminal.

    Selected columns are all printed, in several tables where necessary.
    """
    from rich.text import Text

    columns = selected_columns(comparison)
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
    """Return the columns that fit and those left out, by rank."""
    fitting, dropped = list(columns), list[Column]()
    while len(fitting) > 1 and not _fits(comparison, fitting, console):
        least = max(reversed(fitting), key=lambda column: column.rank)
        fitting.remove(least)
        dropped.append(least)
    return fitting, [column for column in columns if column in dropped]


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
    """Make the comparison for the terminal; the best value of each column is bold."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns = selected_columns(comparison) if columns is None else columns
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
        if row.incomparable and not comparison.rows[position - 1].incomparable:
            table.add_section()
        table.add_row(Text(row.display_label), *cells)
    return table


def to_csv(comparison: Comparison) -> str:
    """Write all numbers of the comparison, unrounded, one line per method; a missing number is an empty cell."""
    lines = [_csv_cells(row) for row in comparison.rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in line.items()} for line in lines)
    return out.getvalue()


def to_markdown(comparison: Comparison) -> str:
    """Write the comparison as a Markdown table, with its notes below."""
    columns = selected_columns(comparison)
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
        lines.append("| " + " | ".join([_markdown_escape(row.display_label), *cells]) + " |")
    return "\n".join([*lines, "", *legend(comparison), *comparison.notes]) + "\n"


_BEST = {
    "validation": "test accuracy of the round that was best on validation samples",
    "test": "the round that was best on the test samples themselves",
    "last": "the last evaluated round",
}


def legend(comparison: Comparison) -> list[str]:
    """Return sentences that explain the columns for these rows."""
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
        if row.test and row.test.p is None and not row.incomparable:
            untested.setdefault(row.test.note, []).append(row.label)
    for note, labels in untested.items():
        all_rows = len(labels) == sum(not row.incomparable for row in comparison.rows) - 1
        sentences.append(f"No test{'' if all_rows else ' for ' + ', '.join(labels)}: {note}.")
    return sentences


def _csv_cells(row: ComparisonRow) -> dict[str, object]:
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
        "flops_per_client_round": row.flops,
        "seconds": row.seconds,
        "p_value": test.p if test else None,
    }
    shown = {
        key: "" if value is None or not math.isfinite(value) else value for key, value in numbers.items()
    }
    about = {"method": row.label, "seeds": " ".join(map(str, row.seeds)), "std_over": row.spread_over}
    about |= {"selected_by": row.selected_by, "set_apart": row.incomparable}
    return {**about, **shown, "test": test.test if test else "", "test_note": test.note if test else ""}


def _markdown_escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
