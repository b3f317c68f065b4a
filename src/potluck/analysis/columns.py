"""The columns of a comparison table: what is shown, how it reads, and which value is the best one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from potluck.analysis import text
from potluck.analysis.comparison import Comparison, Row


@dataclass(frozen=True)
class Column:
    """A column for people: its heading, how a row's cell reads, and which value deserves emphasis."""

    title: str
    cell: Callable[[Row], str]
    value: Callable[[Row], float] | None = None
    best: str = ""  # "max", "min" or nothing


def accuracy_columns(comparison: Comparison) -> list[Column]:
    """How good each method is, and how sure one can be of it (accuracies in %)."""
    columns = [
        Column(
            "accuracy", lambda r: text.percent_spread(r.accuracy, r.accuracy_std), lambda r: r.accuracy, "max"
        ),
        Column("best", lambda r: text.percent(r.best), lambda r: r.best, "max"),
        Column("at round", lambda r: text.count(r.best_round)),
        Column("last", lambda r: text.percent(r.last), lambda r: r.last, "max"),
        Column("worst 10%", lambda r: text.percent(r.worst), lambda r: r.worst, "max"),
        Column("client std", lambda r: text.percent(r.client_std), lambda r: r.client_std, "min"),
    ]
    if any(len(row.seeds) > 1 for row in comparison.rows):
        columns.insert(0, Column("seeds", _seeds_cell))
    if len(comparison.rows) > 1:
        columns.append(Column("p", _p_cell))
    return columns


def cost_columns(comparison: Comparison) -> list[Column]:
    """What each method costs: to the target where one is set, per client and round, and in all."""
    columns: list[Column] = []
    if comparison.target is not None:
        to = f"to {text.percent(comparison.target, 0)}%"
        columns += [
            Column(f"rounds {to}", _rounds_cell, _to_target("rounds"), "min"),
            Column(f"MiB {to}", lambda r: text.mebibytes(_to_target("bytes")(r)), _to_target("bytes"), "min"),
            Column(f"s {to}", lambda r: text.seconds(_to_target("seconds")(r)), _to_target("seconds"), "min"),
        ]
        if any(_has_clock(row) for row in comparison.rows):
            simulated = _to_target("virtual_seconds")
            columns.append(
                Column(f"simulated s {to}", lambda r: text.seconds(simulated(r)), simulated, "min")
            )
        if len(comparison.rows) > 1:
            columns.append(Column("speed-up", lambda r: text.factor(r.speed_up), lambda r: r.speed_up, "max"))
    return [
        *columns,
        Column("floats up", lambda r: text.count(r.floats_up), lambda r: r.floats_up, "min"),
        Column("floats down", lambda r: text.count(r.floats_down), lambda r: r.floats_down, "min"),
        Column("MiB", lambda r: text.mebibytes(r.bytes_total), lambda r: r.bytes_total, "min"),
        Column("seconds", lambda r: text.seconds(r.seconds), lambda r: r.seconds, "min"),
    ]


def all_columns(comparison: Comparison) -> list[Column]:
    """Both kinds, accuracy first."""
    return [*accuracy_columns(comparison), *cost_columns(comparison)]


def _seeds_cell(row: Row) -> str:
    """How many seeds the numbers are of; runs still going are not among them once one has ended."""
    return str(row.counted) if row.counted == len(row.seeds) else f"{row.counted} of {len(row.seeds)}"


def _p_cell(row: Row) -> str:
    return "ref." if row.test is None else text.probability(row.test.p)


def _rounds_cell(row: Row) -> str:
    shown = text.count(_to_target("rounds")(row))
    return f"{shown} ({row.reached}/{row.counted})" if 0 < row.reached < row.counted else shown


def _to_target(cost: str) -> Callable[[Row], float]:
    return lambda row: row.to_target.in_(cost) if row.to_target else math.nan


def _has_clock(row: Row) -> bool:
    """Whether simulated time means anything: without a fleet a second of it is a round."""
    cost = row.to_target
    return cost is not None and cost.virtual_seconds > 0 and cost.virtual_seconds != cost.rounds


def best_rows(comparison: Comparison, column: Column) -> set[int]:
    """Positions of the rows with the column's best value; nobody is best where there is nobody to beat."""
    if column.value is None or len(comparison.rows) < 2:
        return set()
    values = {position: column.value(row) for position, row in enumerate(comparison.rows)}
    known = {position: value for position, value in values.items() if math.isfinite(value)}
    if not known:
        return set()
    best = max(known.values()) if column.best == "max" else min(known.values())
    equal = {position for position, value in known.items() if math.isclose(value, best, rel_tol=1e-9)}
    return equal if len(equal) < len(known) else set()
