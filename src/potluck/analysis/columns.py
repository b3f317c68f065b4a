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
    """A column for people: its heading, how a row's cell reads, and which value deserves emphasis.

    `rank` says what goes first where there is no room for all: the greatest.
    """

    title: str
    cell: Callable[[Row], str]
    value: Callable[[Row], float] | None = None
    best: str = ""  # "max", "min" or nothing
    rank: int = 0


def _percent(title: str, value: Callable[[Row], float], rank: int, best: str = "max") -> Column:
    return Column(title, lambda row: text.percent(value(row)), value, best, rank)


def _sent(title: str, value: Callable[[Row], float], rank: int, show: Callable[[float], str]) -> Column:
    """Traffic; who sends nothing at all wins no contest of sending little."""
    return Column(
        title,
        lambda row: show(value(row)),
        lambda row: math.nan if row.silent else value(row) or math.nan,
        "min",
        rank,
    )


COLUMNS: dict[str, Column] = {
    "seeds": Column("seeds", lambda row: _seeds_cell(row), lambda row: row.counted, rank=8),
    "accuracy": Column(
        "accuracy", lambda r: text.percent_spread(r.accuracy, r.accuracy_std), lambda r: r.accuracy, "max"
    ),
    "best": _percent("best", lambda r: r.best, 3),
    "round": Column("at round", lambda r: text.count(r.best_round), lambda r: r.best_round, rank=12),
    "validation": _percent("validation", lambda r: r.validation, 15),
    "last": _percent("last", lambda r: r.last, 18),
    "worst": _percent("worst 10%", lambda r: r.worst, 2),
    "spread": _percent("client std", lambda r: r.client_std, 13, "min"),
    "f1": _percent("macro F1", lambda r: r.macro_f1, 14),
    "ece": _percent("calibration error", lambda r: r.calibration_error, 16, "min"),
    "nll": Column("log loss", lambda r: text.decimals(r.loss), lambda r: r.loss, "min", 17),
    "newcomers": _percent("newcomers", lambda r: r.newcomers, 6),
    "gain": Column(
        "newcomers' gain",
        lambda r: text.signed_percent(r.newcomers_gain),
        lambda r: r.newcomers_gain,
        "max",
        6,
    ),
    "p": Column("p", lambda row: _p_cell(row), lambda row: _p_value(row), rank=1),
    "floats-up": _sent("floats up", lambda r: r.floats_up, 9, text.count),
    "floats-down": _sent("floats down", lambda r: r.floats_down, 9, text.count),
    "traffic": _sent("MiB", lambda r: r.bytes_total, 4, text.mebibytes),
    "seconds": Column("seconds", lambda r: text.seconds(r.seconds), lambda r: r.seconds, "min", 7),
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


def known_columns(comparison: Comparison) -> list[tuple[str, Column, bool]]:
    """Every column that says something of these rows: its name, the column, and whether it is usually shown."""
    usual = list(comparison.columns) or _usual(comparison)
    names = [*usual, *(name for name in COLUMNS if name not in usual and _says_something(comparison, name))]
    found: list[tuple[str, Column, bool]] = []
    for name in names:
        if name == TARGET:
            found += [(f"{TARGET}-{at}", each, True) for at, each in enumerate(target_columns(comparison))]
        else:
            found.append((name, COLUMNS[name], name in usual))
    return found


def _says_something(comparison: Comparison, name: str) -> bool:
    value = COLUMNS[name].value
    if name in ("seeds", "p") or value is None:
        return False
    return any(math.isfinite(value(row)) for row in comparison.rows)


def _usual(comparison: Comparison) -> list[str]:
    rows = comparison.rows
    nobody_joined = not any(math.isfinite(row.newcomers) for row in rows)
    left_out = {
        "seeds": all(len(row.seeds) == 1 for row in rows),
        "last": all(text.percent(row.last) == text.percent(row.accuracy) for row in rows),
        "spread": all(row.spread_over == "clients" for row in rows),  # the accuracy's ± says it already
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
        Column(f"rounds {to}", _rounds_cell, _to_target("rounds"), "min", 5),
        _sent(f"MiB {to}", _to_target("bytes"), 10, text.mebibytes),
        Column(f"s {to}", lambda r: text.seconds(_to_target("seconds")(r)), _to_target("seconds"), "min", 11),
    ]
    if any(_has_clock(row) for row in comparison.rows):
        simulated = _to_target("virtual_seconds")
        columns.append(
            Column(f"simulated s {to}", lambda r: text.seconds(simulated(r)), simulated, "min", 11)
        )
    if len(comparison.rows) > 1:
        columns.append(Column("speed-up", lambda r: text.factor(r.speed_up), lambda r: r.speed_up, "max", 10))
    return columns


def _seeds_cell(row: Row) -> str:
    """How many seeds the numbers are of; runs still going are not among them once one has ended."""
    return str(row.counted) if row.counted == len(row.seeds) else f"{row.counted} of {len(row.seeds)}"


def _p_cell(row: Row) -> str:
    return "ref." if row.test is None else text.probability(row.test.p)


def _p_value(row: Row) -> float:
    return math.nan if row.test is None or row.test.p is None else row.test.p


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
    if column.value is None or not column.best or len(together) < 2:
        return set()
    values = {position: column.value(row) for position, row in together.items()}
    known = {position: value for position, value in values.items() if math.isfinite(value)}
    if not known:
        return set()
    best = max(known.values()) if column.best == "max" else min(known.values())
    equal = {position for position, value in known.items() if math.isclose(value, best, rel_tol=1e-9)}
    return equal if len(equal) < len(known) else set()
