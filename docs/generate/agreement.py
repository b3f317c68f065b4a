"""Compare a measured table with the printed one: rank correlations with their chance range, the mean gap, who is first."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

EXACT, DRAWS = 7, 5000
"""Up to so many rows all orders are tried; of more rows, so many random ones."""
LEAST = 3
"""Rows without which an order says nothing."""


@dataclass(frozen=True)
class Agreement:
    """How the measured order of a column's rows agrees with the printed one."""

    rows: int
    spearman: float
    kendall: float
    spearman_chance: float
    kendall_chance: float
    gap: float
    own_rank: int
    printed_rank: int
    left_out: tuple[str, ...] = ()
    """Rows that ran for other rounds than the paper's own method."""

    def __str__(self) -> str:
        chance = f"chance reaches ±{self.spearman_chance:.2f} and ±{self.kendall_chance:.2f}"
        order = (
            f"Spearman {self.spearman:+.2f}, Kendall {self.kendall:+.2f} over {self.rows} rows ({chance}); "
        )
        if self.rows < LEAST:
            order = f"{self.rows} rows, too few for an order; "
        left_out = f"; rows of other rounds are left out: {', '.join(self.left_out)}" if self.left_out else ""
        return (
            f"{order}{self.gap:+.1f} points from the printed numbers in the mean; "
            f"the paper's own method is {_place(self.own_rank)} of these rows, printed as {_place(self.printed_rank)}"
            f"{left_out}"
        )


Rounds = Mapping[tuple[str, str], Collection[int | None]]
"""The rounds of the stored runs of each row and column."""


def compare_columns(table: Any, rounds: Rounds) -> dict[str, Agreement]:
    """Return the agreement of every accuracy column of a table in which the paper's own method and a rival were measured.

    Only rows with as many rounds as the paper's own method are compared.
    """
    agreements = {}
    for name in table.columns:
        if table.recipe.columns[name].measure not in ("best", "last"):
            continue
        printed, here = {}, {}
        for row in table.rows:
            cell = table.cell(row, name)
            text = cell.printed.partition("±")[0]
            if text[:1].isdigit() and cell.known:
                printed[row], here[row] = float(text), float(cell.mean)
        own = [row for row in table.recipe.own_rows if row in printed]
        if not own:
            continue
        same = [row for row in printed if _rounds(rounds, row, name) == _rounds(rounds, own[-1], name)]
        if len(same) > 1:
            left_out = tuple(row for row in printed if row not in same)
            values = [[column[row] for row in same] for column in (printed, here)]
            agreements[name] = replace(agreement(*values, same.index(own[-1])), left_out=left_out)
    return agreements


def _rounds(rounds: Rounds, row: str, column: str) -> frozenset[int | None]:
    return frozenset(rounds.get((row, column), ()))


def agreement(printed: Sequence[float], here: Sequence[float], own: int) -> Agreement:
    """Compare two columns; `own` is the place of the paper's own method in both."""
    return Agreement(
        len(printed),
        spearman(printed, here),
        kendall(printed, here),
        chance_range("spearman", len(printed)),
        chance_range("kendall", len(printed)),
        sum(b - a for a, b in zip(printed, here, strict=True)) / len(printed),
        1 + sum(value > here[own] for value in here),
        1 + sum(value > printed[own] for value in printed),
    )


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the correlation of ranks; ties share the mean of theirs. 0 where one of the two is constant."""
    x, y = _ranks(a), _ranks(b)
    mean = (len(x) + 1) / 2
    products = sum((p - mean) * (q - mean) for p, q in zip(x, y, strict=True))
    size = math.sqrt(sum((p - mean) ** 2 for p in x) * sum((q - mean) ** 2 for q in y))
    return products / size if size else 0.0


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Return τ-b: pairs in the same order less pairs in the other, corrected for ties. 0 where one is constant."""
    pairs = list(itertools.combinations(range(len(a)), 2))
    signs = [(_sign(a[i] - a[j]), _sign(b[i] - b[j])) for i, j in pairs]
    size = math.sqrt(sum(p != 0 for p, _ in signs) * sum(q != 0 for _, q in signs))
    return sum(p * q for p, q in signs) / size if size else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(rival < value for rival in values) + (1 + sum(rival == value for rival in values)) / 2
        for value in values
    ]


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


MEASURES: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "spearman": spearman,
    "kendall": kendall,
}


@cache
def chance_range(name: str, rows: int) -> float:
    """Return the distance from zero that a random order stays within 19 times of 20; 1 where it reaches the end."""
    first = list(range(rows))
    if rows <= EXACT:
        orders = [list(order) for order in itertools.permutations(first)]
    else:
        stream = random.Random(0)
        orders = [stream.sample(first, rows) for _ in range(DRAWS)]
    reached = sorted(abs(MEASURES[name](first, order)) for order in orders)
    return reached[math.ceil(0.95 * len(reached)) - 1]


def _place(rank: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(rank, f"{rank}th")
