"""The papers' tables beside what was measured, from the stored cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from generate.text import with_block

ROOT = Path(__file__).parents[2]
CELLS = ROOT / "results" / "papers.csv"
SCALE = "small"


def renewed(page: str) -> str:
    """The page with its tables as the stored cells have them."""
    return with_block(page, "papers", tables())


def tables() -> str:
    """Every recipe of which something is stored: both numbers side by side, what differs, and what made it."""
    from potluck.recipes.recipe import find_recipe
    from potluck.recipes.store import read_cells, stored_table

    cells = read_cells(CELLS)
    if not cells:
        return "Nothing is stored yet."
    found = [
        stored_table(find_recipe(name), SCALE, cells) for name in dict.fromkeys(one.recipe for one in cells)
    ]
    had = {table.work[key].data.name for table in found for key in table.values}
    parts = [_part(table, [one for one in cells if one.recipe == table.recipe.name], had) for table in found]
    return "\n\n".join([_heading(cells), *parts])


def _heading(cells: list[Any]) -> str:
    seconds = {(one.recipe, one.row, one.experiment): one.core_seconds or 0 for one in cells}
    made = sorted({f"{one.versions}; {one.machine}" for one in cells})
    return (
        f"{len(seconds)} runs, {sum(seconds.values()) / 60:.0f} minutes of processor time in all, at `--scale {SCALE}`; "
        f"code of {', '.join(sorted({one.commit for one in cells}))}; {'; '.join(made)}. "
        "Read [the claims](claims.md) for what these numbers can carry."
    )


def _part(table: Any, cells: list[Any], had: set[str]) -> str:
    from potluck.recipes.tables import blocks, scale_lines

    parts = blocks(table)
    heads = [f"{heading}, {name}" for heading, columns in parts for name, _ in columns]
    lines = [f"### {table.recipe.title}", "", f"`{cells[0].command}`", ""]
    lines += ["| method | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for position, row in enumerate(table.rows):
        shown = [column[position] for _, columns in parts for _, column in columns]
        lines.append("| " + " | ".join([row, *shown]) + " |")
    seeds = ", ".join(map(str, table.seeds))
    return "\n".join([*lines, "", f"Seed {seeds}. " + " ".join(scale_lines(table)[1:]) + _absent(table, had)])


def _absent(table: Any, had: set[str]) -> str:
    """Columns of which nothing is stored; sets that no stored run has had are named."""
    recipe = table.recipe
    absent = [name for name in recipe.columns if name not in table.columns]
    settings = {recipe.columns[name].setting for name in absent}
    sets = {one.data.name for (_, setting, _), one in table.work.items() if setting in settings} - had
    reason = f" ({', '.join(sorted(sets))}: data not at hand)" if sets else ""
    return f" Not measured: {', '.join(recipe.heading(name) for name in absent)}{reason}." if absent else ""
