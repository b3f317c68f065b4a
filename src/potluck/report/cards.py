"""The report's cards: the few numbers a reader looks for first. Ties are named; what has no meaning is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from potluck.analysis import text
from potluck.analysis.comparison import Comparison, Row

Card = tuple[str, str, str]
_LONG = 16  # characters from which a card's value is set smaller
_NAMED = 3


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
    return f'<dl class="cards">{"".join(items)}</dl>' if found else ""


def _cards_of_one(row: Row) -> list[Card]:
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


def _cards_of_many(comparison: Comparison) -> list[Card]:
    def accuracy(row: Row) -> str:
        return f"{text.percent_spread(row.accuracy, row.accuracy_std)} % over {row.spread_over}"

    def rounds(row: Row) -> float:
        return row.to_target.rounds if row.to_target else math.nan

    rows, percent = comparison.rows, lambda row: f"{text.percent(row.worst)} %"
    goal = text.percent(comparison.target or 0, 0)
    wanted = [
        _card("Highest final accuracy", rows, lambda row: row.accuracy, accuracy),
        _card("Best for the worst 10 %", rows, lambda row: row.worst, percent),
        # Sending nothing is no contest.
        _card(
            "Least traffic",
            rows,
            lambda row: math.nan if row.silent else -row.bytes_total,
            lambda row: text.bytes_with_unit(row.bytes_total),
        ),
        _card(
            f"Fewest rounds to {goal} %",
            rows,
            lambda row: -rounds(row),
            lambda row: f"{text.count(rounds(row))} rounds",
        ),
    ]
    return [card for card in wanted if card]


def _card(
    name: str, rows: Sequence[Row], value: Callable[[Row], float], detail: Callable[[Row], str]
) -> Card | None:
    """Who has the highest value; all who tie; nobody where everybody does, or nobody was in the running."""
    known = [row for row in rows if not row.apart and math.isfinite(value(row))]
    if len(known) < 2:
        return None
    best = max(value(row) for row in known)
    first = [row for row in known if math.isclose(value(row), best, rel_tol=1e-6, abs_tol=1e-9)]
    if len(first) == len(known):
        return None
    labels = [row.label for row in first[:_NAMED]]
    more = f" and {len(first) - _NAMED} more" if len(first) > _NAMED else ""
    tie = f"tie of {len(first)}, " if len(first) > 1 else ""
    return name, ", ".join(labels) + more, tie + detail(first[0])
