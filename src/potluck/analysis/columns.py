"""Define the columns of a comparison table: heading, cell text, and which value is best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potluck.analysis import formatting
from potluck.analysis.comparison import Comparison, ComparisonRow
from potluck.core.errors import PotluckError, unknown


@dataclass(frozen=True)
class Column:
    """A column: its heading, the text of a row's cell, and which value is best.

    Columns of the greatest `rank` are left out first where there is no room for all.
    """

    title: str
    cell: Callable[[ComparisonRow], str]
    value: Callable[[ComparisonRow], float] | None = None
    best: str = ""  # "max", "min" or empty
    rank: int = 0


def _percent(title: str, value: Callable[[ComparisonRow], float], rank: int, best: str = "max") -> Column:
    return Column(title, lambda row: formatting.percent(value(row)), value, best, rank)


def _sent(
    title: str, value: Callable[[ComparisonRow], float], rank: int, show: Callable[[float], str]
) -> Column:
    """Make a column of traffic; methods that send nothing take no part in the comparison."""
    return Column(
        title,
        lambda row: show(value(row)),
        lambda row: math.nan if row.sends_nothing else value(row) or math.nan,
        "min",
        rank,
    )


COLUMNS: dict[str, Column] = {
    "seeds": Column("seeds", lambda row: _seeds_cell(row), lambda row: row.run_count, rank=8),
    "accuracy": Column(
        "accuracy",
        lambda r: formatting.percent_spread(r.accuracy, r.accuracy_std),
        lambda r: r.accuracy,
        "max",
    ),
    "best": _percent("best", lambda r: r.best, 3),
    "round": Column("at round", lambda r: formatting.count(r.best_round), lambda r: r.best_round, rank=12),
    "validation": _percent("validation", lambda r: r.validation, 15),
    "last": _percent("last", lambda r: r.last, 18),
    "worst": _percent("worst 10%", lambda r: r.worst, 2),
    "spread": _percent("client std", lambda r: r.client_std, 13, "min"),
    "f1": _percent("macro F1", lambda r: r.macro_f1, 14),
    "ece": _percent("calibration error", lambda r: r.calibration_error, 16, "min"),
    "nll": Column("log loss", lambda r: formatting.decimals(r.loss), lambda r: r.loss, "min", 17),
    "newcomers": _percent("newcomers", lambda r: r.newcomers, 6),
    "gain": Column(
        "newcomers' gain",
        lambda r: formatting.signed_percent(r.newcomers_gain),
        lambda r: r.newcomers_gain,
        "max",
        6,
    ),
    "p": Column("p", lambda row: _p_cell(row), lambda row: _p_value(row), rank=1),
    "floats-up": _sent("floats up", lambda r: r.floats_up, 9, formatting.count),
    "floats-down": _sent("floats down", lambda r: r.floats_down, 9, formatting.count),
    "traffic": _sent("MiB", lambda r: r.bytes_total, 4, formatting.mebibytes),
    "flops": Column("MFLOPs", lambda r: formatting.megaflops(r.flops), lambda r: r.flops, "min", 14),
    "seconds": Column("seconds", lambda r: formatting.seconds(r.seconds), lambda r: r.seconds, "min", 7),
}
"""Columns by the name used in `--columns`, without those of a target."""

TARGET = "target"
"""The name of all columns of a target's cost."""
_DEFAULT: tuple[str, ...] = (
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
_DEFAULT += (TARGET, "floats-up", "floats-down", "traffic", "flops", "seconds")


def check_columns(names: Sequence[str], target: float | None) -> None:
    """Raise an error for an unknown column, or for target columns without a target."""
    for name in names:
        if name not in (*COLUMNS, TARGET):
            raise unknown("column", name, [*COLUMNS, TARGET])
        if name == TARGET and target is None:
            raise PotluckError(
                "Column 'target' is the cost of a target accuracy; pass --target, such as --target 0.8."
            )


def selected_columns(comparison: Comparison) -> list[Column]:
    """Return the selected columns, by default accuracies in %, costs and p-values."""
    check_columns(comparison.columns, comparison.target)
    columns: list[Column] = []
    for name in comparison.columns or _default_columns(comparison):
        columns += target_columns(comparison) if name == TARGET else [COLUMNS[name]]
    return columns


def available_columns(comparison: Comparison) -> list[tuple[str, Column, bool]]:
    """Return every column with a value for these rows: its name, the column, and whether it is shown by default."""
    default = list(comparison.columns) or _default_columns(comparison)
    names = [*default, *(name for name in COLUMNS if name not in default and _has_values(comparison, name))]
    columns: list[tuple[str, Column, bool]] = []
    for name in names:
        if name == TARGET:
            columns += [(f"{TARGET}-{at}", each, True) for at, each in enumerate(target_columns(comparison))]
        else:
            columns.append((name, COLUMNS[name], name in default))
    return columns


def _has_values(comparison: Comparison, name: str) -> bool:
    value = COLUMNS[name].value
    if name in ("seeds", "p") or value is None:
        return False
    return any(math.isfinite(value(row)) for row in comparison.rows)


def _default_columns(comparison: Comparison) -> list[str]:
    rows = comparison.rows
    no_newcomers = not any(math.isfinite(row.newcomers) for row in rows)
    left_out = {
        "seeds": all(len(row.seeds) == 1 for row in rows),
        "last": all(formatting.percent(row.last) == formatting.percent(row.accuracy) for row in rows),
        "spread": all(row.spread_over == "clients" for row in rows),  # the same as the accuracy's ±
        "newcomers": no_newcomers,
        "gain": no_newcomers,
        "p": len(rows) == 1,
        "flops": not any(math.isfinite(row.flops) for row in rows),
        TARGET: comparison.target is None,
    }
    return [name for name in _DEFAULT if not left_out.get(name)]


def target_columns(comparison: Comparison) -> list[Column]:
    """Return the columns of each method's cost to the target accuracy."""
    assert comparison.target is not None
    to = f"to {formatting.percent(comparison.target, 0)}%"
    columns = [
        Column(f"rounds {to}", _rounds_cell, _to_target("rounds"), "min", 5),
        _sent(f"MiB {to}", _to_target("bytes"), 10, formatting.mebibytes),
        Column(
            f"s {to}",
            lambda r: formatting.seconds(_to_target("seconds")(r)),
            _to_target("seconds"),
            "min",
            11,
        ),
    ]
    if any(_has_clock(row) for row in comparison.rows):
        simulated = _to_target("virtual_seconds")
        columns.append(
            Column(f"simulated s {to}", lambda r: formatting.seconds(simulated(r)), simulated, "min", 11)
        )
    if len(comparison.rows) > 1:
        columns.append(
            Column("speed-up", lambda r: formatting.factor(r.speed_up), lambda r: r.speed_up, "max", 10)
        )
    return columns


def _seeds_cell(row: ComparisonRow) -> str:
    """Write the number of seeds that count; unfinished runs do not count once one is finished."""
    return str(row.run_count) if row.run_count == len(row.seeds) else f"{row.run_count} of {len(row.seeds)}"


def _p_cell(row: ComparisonRow) -> str:
    return "ref." if row.test is None else formatting.probability(row.test.p)


def _p_value(row: ComparisonRow) -> float:
    return math.nan if row.test is None or row.test.p is None else row.test.p


def _rounds_cell(row: ComparisonRow) -> str:
    shown = formatting.count(_to_target("rounds")(row))
    return f"{shown} ({row.reached}/{row.run_count})" if 0 < row.reached < row.run_count else shown


def _to_target(cost: str) -> Callable[[ComparisonRow], float]:
    return lambda row: row.to_target.amount(cost) if row.to_target else math.nan


def _has_clock(row: ComparisonRow) -> bool:
    """Return whether simulated time was recorded: without a fleet a simulated second is a round."""
    cost = row.to_target
    return cost is not None and cost.virtual_seconds > 0 and cost.virtual_seconds != cost.rounds


def best_rows(comparison: Comparison, column: Column) -> set[int]:
    """Return positions of the rows with the best value; none where all are equal or only one row has a value."""
    comparable = {position: row for position, row in enumerate(comparison.rows) if not row.incomparable}
    if column.value is None or not column.best or len(comparable) < 2:
        return set()
    values = {position: column.value(row) for position, row in comparable.items()}
    finite = {position: value for position, value in values.items() if math.isfinite(value)}
    if not finite:
        return set()
    best = max(finite.values()) if column.best == "max" else min(finite.values())
    equal = {position for position, value in finite.items() if math.isclose(value, best, rel_tol=1e-9)}
    return equal if len(equal) < len(finite) else set()
