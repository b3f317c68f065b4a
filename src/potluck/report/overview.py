"""The report's first words: what the numbers show, the table of methods, a line on each, and where it was made."""

from __future__ import annotations

import json
import math
from html import escape

from potluck.analysis.columns import best_rows, known_columns
from potluck.analysis.comparison import Comparison, Row
from potluck.analysis.findings import findings
from potluck.analysis.tables import legend
from potluck.core.errors import PotluckError
from potluck.report.markup import scrolled, swatch


def findings_section(comparison: Comparison) -> str:
    """The sentences, for everybody who reads no further."""
    return "".join(f'<p class="finding">{escape(sentence)}</p>' for sentence in findings(comparison))


def comparison_table(comparison: Comparison) -> str:
    """All methods with all columns; the best value of a column is bold. The page's script sorts, hides and filters."""
    known = known_columns(comparison)
    bests = [best_rows(comparison, column) for _, column, _ in known]
    head = "".join(
        f'<th scope="col" data-column="{name}" data-rank="{column.rank}" data-usual="{json.dumps(usual)}"'
        f"{'' if usual else ' hidden'}>{_two_lines(column.title)}</th>"
        for name, column, usual in known
    )
    lines = []
    for position, row in enumerate(comparison.rows):
        cells = "".join(
            f'<td data-column="{name}" data-value="{_value(column.value(row)) if column.value else ""}"'
            f"{'' if usual else ' hidden'}>{_marked(column.cell(row), position in best)}</td>"
            for (name, column, usual), best in zip(known, bests, strict=True)
        )
        label = f'<th scope="row">{swatch(position)}<span>{escape(row.shown)}</span></th>'
        lines.append(f'<tr data-group="{position}">{label}{cells}</tr>')
    heading = f'<thead><tr><th scope="col" data-column="method">method</th>{head}</tr></thead>'
    table = f'<table id="methods-table">{heading}<tbody>{"".join(lines)}</tbody></table>'
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in legend(comparison))
    warnings = "".join(f'<p class="note">{escape(sentence)}</p>' for sentence in comparison.notes)
    return scrolled(table, "Comparison of the methods") + f'<div class="fine">{sentences}{warnings}</div>'


def methods_section(comparison: Comparison) -> str:
    """One line about each method, to unfold; of methods that this installation does not have, nothing."""
    lines = {row.method: line for row in comparison.rows if (line := _summary(row))}
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(line)}</dd></div>" for name, line in lines.items()
    )
    return (
        f'<details><summary>The methods in a line each</summary><dl class="lines">{items}</dl></details>'
        if items
        else ""
    )


def made_section(comparison: Comparison) -> str:
    """When, where and with what the runs were made; each fact once."""
    facts: dict[str, dict[str, None]] = {}
    for group in comparison.groups:
        for run in group.runs:
            made = run.summary.get("made")
            for key, value in (made if isinstance(made, dict) else {}).items():
                facts.setdefault(str(key), {})[str(value)] = None
    if not facts:
        return ""
    said = [f"{key} {_few(sorted(values))}" for key, values in facts.items()]
    return f'<p class="fine made">Made: {escape("; ".join(said))}.</p>'


def _few(values: list[str]) -> str:
    return ", ".join(values) if len(values) <= 2 else f"{values[0]} to {values[-1]}"


def _summary(row: Row) -> str:
    from potluck.methods import METHODS, method_class

    try:
        return method_class(row.method).summary if row.method in METHODS else ""
    except PotluckError:
        return ""


def _marked(cell: str, best: bool) -> str:
    return f"<strong>{escape(cell)}</strong>" if best else escape(cell)


def _value(number: float) -> str:
    return f"{number:.9g}" if math.isfinite(number) else ""


def _two_lines(title: str) -> str:
    first, _, rest = title.partition(" ")
    return f"{escape(first)}<br>{escape(rest)}" if rest else escape(first)
