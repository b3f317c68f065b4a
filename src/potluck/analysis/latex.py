"""A comparison as a LaTeX table: the best and the second best marked by what the tests can tell apart."""

from __future__ import annotations

import math

from potluck.analysis.columns import COLUMNS, Column, all_columns
from potluck.analysis.comparison import Comparison
from potluck.analysis.significance import holm, paired_test

LEVEL = 0.05
MARKS = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}


def to_latex(comparison: Comparison, caption: str = "", label: str = "") -> str:
    """The comparison as a LaTeX tabular (needs the booktabs package); with a caption or a label, as a whole table.

    Bold is the best of a column. For accuracy it is also whatever a paired test, corrected by Holm, does not tell apart
    from the best; underlined is the best of the others.
    """
    columns = all_columns(comparison)
    head = " & ".join(["method", *(latex_escape(column.title) for column in columns)])
    marks = [_marks(comparison, column) for column in columns]
    lines = [r"\begin{tabular}{l" + "r" * len(columns) + "}", r"\toprule", head + r" \\", r"\midrule"]
    for position, row in enumerate(comparison.rows):
        cells = [
            MARKS[mark.get(position, "")] % latex_escape(column.cell(row))
            for column, mark in zip(columns, marks, strict=True)
        ]
        lines.append(" & ".join([latex_escape(row.shown), *cells]) + r" \\")
    tabular = "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"
    if not caption and not label:
        return tabular
    said = [rf"\caption{{{latex_escape(caption)}}}"] if caption else []
    named = [rf"\label{{{label}}}"] if label else []
    return (
        "\n".join([r"\begin{table}", r"\centering", *said, *named, tabular.rstrip(), r"\end{table}"]) + "\n"
    )


def _marks(comparison: Comparison, column: Column) -> dict[int, str]:
    """Which rows of a column are best and second best; nobody where all are level, or there is nothing to win."""
    if column.value is None or not column.best:
        return {}
    sign = 1 if column.best == "max" else -1
    values = {
        position: sign * column.value(row)
        for position, row in enumerate(comparison.rows)
        if not row.apart and math.isfinite(column.value(row))
    }
    if len(values) < 2 or math.isclose(min(values.values()), max(values.values()), rel_tol=1e-9):
        return {}
    first = _level_with_best(values)
    if column is COLUMNS["accuracy"]:
        first |= _not_told_apart(comparison, values)
    others = {position: value for position, value in values.items() if position not in first}
    second = _level_with_best(others)
    return {**dict.fromkeys(first, "best"), **dict.fromkeys(second, "second")}


def _level_with_best(values: dict[int, float]) -> set[int]:
    best = max(values.values(), default=math.nan)
    return {position for position, value in values.items() if math.isclose(value, best, rel_tol=1e-9)}


def _not_told_apart(comparison: Comparison, values: dict[int, float]) -> set[int]:
    """Rows that no test shows to be behind the best one; nobody where nothing could be tested at all."""
    best = max(values, key=lambda position: values[position])
    groups = comparison.groups
    tests = {
        position: paired_test(groups[position].counted, groups[best].counted).p
        for position in values
        if position != best
    }
    corrected = holm({str(position): p for position, p in tests.items() if p is not None})
    behind = {int(position) for position, p in corrected.items() if p < LEVEL}
    return set(tests) - behind if corrected else set()


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {character: "\\" + character for character in "&%$#_{}"}
_LATEX |= {"±": r"$\pm$", "×": r"$\times$", "–": "--", "<": "$<$", ">": "$>$", "†": r"$\dagger$"}


def latex_escape(value: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(character, character) for character in value)
