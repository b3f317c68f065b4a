"""The report's cards: the few numbers a reader looks for first."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from potluck.analysis import text
from potluck.analysis.comparison import Comparison, Row

_LONG = 16  # characters from which a card's value is set smaller


def cards(comparison: Comparison) -> str:
    """The few numbers a reader looks for first."""
    rows = comparison.rows
    found = _cards_of_one(rows[0]) if len(rows) == 1 else _cards_of_many(comparison)
    items = (
        f'<div class="card"><dt>{escape(name)}</dt>'
        f'<dd class="{"long" if len(value) > _LONG else "short"}">{escape(value)}</dd>'
        f'<dd class="detail">{escape(detail)}</dd></div>'
        for name, value, detail in found
    )
    return f'<dl class="cards">{"".join(items)}</dl>'


def _cards_of_one(row: Row) -> list[tuple[str, str, str]]:
    return [
        (
            "Final accuracy",
            f"{text.percent(row.accuracy)} %",
            f"± {text.percent(row.accuracy_std)} over {row.spread_over}",
        ),
        ("Best round", f"{text.percent(row.best)} %", f"round {text.count(row.best_round)}"),
        (
            "Worst 10 % of clients",
            f"{text.percent(row.worst)} %",
            f"gap best to worst {text.percent(row.client_gap)}",
        ),
        ("Traffic", text.bytes_with_unit(row.bytes_total), "all clients, both directions"),
        ("Time", text.duration(row.seconds), "wall clock"),
    ]


def _cards_of_many(comparison: Comparison) -> list[tuple[str, str, str]]:
    def winner(value: Callable[[Row], float], lowest: bool = False) -> Row | None:
        known = [row for row in comparison.rows if not row.apart and math.isfinite(value(row))]
        return (min if lowest else max)(known, key=value) if known else None

    found: list[tuple[str, str, str]] = []
    if best := winner(lambda row: row.accuracy):
        spread = f"{text.percent_spread(best.accuracy, best.accuracy_std)} % over {best.spread_over}"
        found.append(("Highest final accuracy", best.label, spread))
    if fair := winner(lambda row: row.worst):
        found.append(("Best for the worst 10 %", fair.label, f"{text.percent(fair.worst)} %"))
    if lean := winner(lambda row: row.bytes_total or math.nan, lowest=True):  # sending nothing is no contest
        found.append(("Least traffic", lean.label, text.bytes_with_unit(lean.bytes_total)))
    if quick := winner(lambda row: row.to_target.rounds if row.to_target else math.nan, lowest=True):
        rounds = text.count(quick.to_target.rounds) if quick.to_target else text.MISSING
        found.append(
            (f"Fewest rounds to {text.percent(comparison.target or 0, 0)} %", quick.label, f"{rounds} rounds")
        )
    return found
