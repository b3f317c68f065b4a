"""The order of a reproduction's runs: the cells that tell most about a paper's claim come first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from potluck.recipes.recipe import Recipe
from potluck.recipes.reproduce import Key, Reproduction

RIVALS = 2
"""The strongest printed rivals that belong to the core of a table."""


def informative_order(table: Reproduction) -> list[Key]:
    """Return all runs, the core of every setting first: the paper's method, its strongest rivals, the reference row.

    Settings come by the printed lead of the paper's method; within the core and the rest, all rows of a seed come
    before the next seed.
    """
    recipe, seeds = table.recipe, list(table.seeds)
    settings = list(dict.fromkeys(setting for _, setting, _ in table.work))
    settings.sort(key=lambda setting: -printed_lead(recipe, setting))
    ranks = {setting: ranked_rows(recipe, setting) for setting in settings}

    def place(key: Key) -> tuple[int, int, int, int]:
        row, setting, seed = key
        rank = ranks[setting].index(row)
        return int(rank >= core_size(recipe, setting)), settings.index(setting), seeds.index(seed), rank

    return sorted(table.work, key=place)


def ranked_rows(recipe: Recipe, setting: str) -> list[str]:
    """Return the rows of a setting: own method, strongest rivals, reference row, then the others as printed."""
    rows = [row for row in recipe.rows if recipe.runs(row, setting, recipe.columns)]
    own = _own_rows(recipe, setting, rows)
    reference = [row for row in reference_rows(recipe) if row in rows and row not in own]
    rivals = [row for row in rows if row not in own and row not in reference]
    rivals.sort(key=lambda row: -_or_least(printed_accuracy(recipe, row, setting)))
    return [*own, *rivals[:RIVALS], *reference, *rivals[RIVALS:]]


def core_size(recipe: Recipe, setting: str) -> int:
    """Return how many of a setting's ranked rows are its core."""
    rows = ranked_rows(recipe, setting)
    special = {*_own_rows(recipe, setting, rows), *reference_rows(recipe)} & {*rows}
    return min(len(rows), len(special) + RIVALS)


def _own_rows(recipe: Recipe, setting: str, rows: Sequence[str]) -> list[str]:
    """Return the rows of the paper's own method; of its variants those that the paper prints, where it prints any."""
    own = [row for row in recipe.own_rows if row in rows]
    return [row for row in own if math.isfinite(printed_accuracy(recipe, row, setting))] or own


def reference_rows(recipe: Recipe) -> list[str]:
    """Return the rows of clients that train alone; where a table has none, its first row."""
    alone = [label for label, row in recipe.rows.items() if row.method == "standalone"]
    return alone or [next(iter(recipe.rows))]


def printed_lead(recipe: Recipe, setting: str) -> float:
    """Return the points by which the paper's method is printed ahead of its best rival; -inf where that is unknown."""
    printed = {row: printed_accuracy(recipe, row, setting) for row in recipe.rows}
    own = [value for row, value in printed.items() if row in recipe.own_rows and math.isfinite(value)]
    rivals = [value for row, value in printed.items() if row not in recipe.own_rows and math.isfinite(value)]
    return max(own) - max(rivals) if own and rivals else -math.inf


def printed_accuracy(recipe: Recipe, row: str, setting: str) -> float:
    """Return the accuracy that the paper prints for a row on a setting, in %; nan where it prints none."""
    for name, column in recipe.columns.items():
        if column.setting == setting and column.measure in ("best", "last"):
            text = recipe.printed(row, name).partition("±")[0]
            if text[:1].isdigit():
                return float(text)
    return math.nan


def _or_least(value: float) -> float:
    return value if math.isfinite(value) else -math.inf
