"""The columns of a comparison table: what is shown, how it reads, and which value is the best one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potluck.analysis import text
from potluck.analysis.comparison import Comparison, Row
from potluck.core.errors import PotluckError, unknown


@dataclass(frozen=True)
class Column:
    """A column for people: its heading, how a row's cell reads, and which value deserves emphasis."""

    title: str
    cell: Callable[[Row], str]
    value: Callable[[Row], float] | None = None
    best: str = ""  # "max", "min" or nothing


def _percent(title: str, value: Callable[[Row], float], best: str = "max") -> Column:
    return Column(title, lambda row: text.percent(value(row)), value, best)


COLUMNS: dict[str, Column] = {
    "seeds": Column("seeds", lambda row: _seeds_cell(row)),
    "accuracy": Column(
        "accuracy", lambda r: text.percent_spread(r.accuracy, r.accuracy_std), lambda r: r.accuracy, "max"
    ),
    "best": _percent("best", lambda r: r.best),
    "round": Column("at round", lambda r: text.count(r.best_round)),
    "validation": _percent("validation", lambda r: r.validation),
    "last": _percent("last", lambda r: r.last),
    "worst": _percent("worst 10%", lambda r: r.worst),
    "spread": _percent("client std", lambda r: r.client_std, "min"),
    "f1": _percent("macro F1", lambda r: r.macro_f1),
    "ece": _percent("calibration error", lambda r: r.calibration_error, "min"),
    "nll": Column("log loss", lambda r: text.decimals(r.loss), lambda r: r.loss, "min"),
    "newcomers": _percent("newcomers", lambda r: r.newcomers),
    "gain": Column(
        "newcomers' gain", lambda r: text.signed_percent(r.newcomers_gain), lambda r: r.newcomers_gain, "max"
    ),
    "p": Column("p", lambda row: _p_cell(row)),
    "floats-up": Column("floats up", lambda r: text.count(r.floats_up), lambda r: r.floats_up, "min"),
    "floats-down": Column("floats down", lambda r: text.count(r.floats_down), lambda r: r.floats_down, "min"),
    "traffic": Column("MiB", lambda r: text.mebibytes(r.bytes_total), lambda r: r.bytes_total, "min"),
    "seconds": Column("seconds", lambda r: text.seconds(r.seconds), lambda r: r.seconds, "min"),
}
"""Every column by the name under which it is asked for; those of a target are not among them."""

TARGET = "target"
"""Stands for all columns of the target's cost."""
_USUAL: tuple[str, ...] = (
    "seeds",
    "accuracy",
    "best",
    "round",
    "last",
    "worst",
    "spread",
    "newcomers",
    "gain",
    "p",
)
_USUAL += (TARGET, "floats-up", "floats-down", "traffic", "seconds")


def check_columns(names: Sequence[str], target: float | None) -> None:
    """Refuse a column that there is not, or that would be empty."""
    for name in names:
        if name not in (*COLUMNS, TARGET):
            raise unknown("column", name, [*COLUMNS, TARGET])
        if name == TARGET and target is None:
            raise PotluckError(
                "Column 'target' is what a target accuracy costs; pass --target, such as --target 0.8."
            )


def all_columns(comparison: Comparison) -> list[Column]:
    """The columns asked for, or else the usual ones: accuracies in %, what they cost, and how sure one can be."""
    check_columns(comparison.columns, comparison.target)
    columns: list[Column] = []
    for name in comparison.columns or _usual(comparison):
        columns += target_columns(comparison) if name == TARGET else [COLUMNS[name]]
    return columns


def _usual(comparison: Comparison) -> list[str]:
    rows = comparison.rows
    nobody_joined = not any(math.isfinite(row.newcomers) for row in rows)
    left_out = {
        "seeds": all(len(row.seeds) == 1 for row in rows),
        "newcomers": nobody_joined,
        "gain": nobody_joined,
        "p": len(rows) == 1,
        TARGET: comparison.target is None,
    }
    return [name for name in _USUAL if not left_out.get(name)]


def target_columns(comparison: Comparison) -> list[Column]:
    """What each method costs until the target accuracy."""
    assert comparison.target is not None
    to = f"to {text.percent(comparison.target, 0)}%"
    columns = [
        Column(f"rounds {to}", _rounds_cell, _to_target("rounds"), "min"),
        Column(f"MiB {to}", lambda r: text.mebibytes(_to_target("bytes")(r)), _to_target("bytes"), "min"),
        Column(f"s {to}", lambda r: text.seconds(_to_target("seconds")(r)), _to_target("seconds"), "min"),
    ]
    if any(_has_clock(row) for row in comparison.rows):
        simulated = _to_target("virtual_seconds")
        columns.append(Column(f"simulated s {to}", lambda r: text.seconds(simulated(r)), simulated, "min"))
    if len(comparison.rows) > 1:
        columns.append(Column("speed-up", lambda r: text.factor(r.speed_up), lambda r: r.speed_up, "max"))
    return columns


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
    together = {position: row for position, row in enumerate(comparison.rows) if not row.apart}
    if column.value is None or len(together) < 2:
        return set()
    values = {position: column.value(row) for position, row in together.items()}
    known = {position: value for position, value in values.items() if math.isfinite(value)}
    if not known:
        return set()
    best = max(known.values()) if column.best == "max" else min(known.values())
    equal = {position for position, value in known.items() if math.isclose(value, best, rel_tol=1e-9)}
    return equal if len(equal) < len(known) else set()
