"""Write the papers' tables beside the measured cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from generate.text import replace_block

ROOT = Path(__file__).parents[2]
CELLS = ROOT / "results" / "papers.csv"
SCALE = "small"


def update_page(page: str) -> str:
    """The page with its tables as the stored cells have them."""
    return replace_block(page, "papers", tables())


def update_readme(readme: str, results: Path = ROOT / "results") -> str:
    """The front page with what the stored cells and the ledger come to, in a few sentences."""
    return replace_block(readme, "papers", f"{reproduction_status(results)}\n\n{_claims(results)}")


def reproduction_status(results: Path) -> str:
    """Which recipes were run, how far, with how many seeds, and how long that took."""
    from potluck.recipes.recipe import find_recipe, recipe_names
    from potluck.recipes.store import read_cells, stored_table

    cells, whole, parts = read_cells(results / CELLS.name), [], []
    for name in recipe_names():
        recipe = find_recipe(name)
        table = stored_table(recipe, SCALE, cells)
        if table.values:
            (whole if _is_whole(table) else parts).append(name)
    seeds = len({one.seed for one in cells})
    runs = f"{seeds} seeds" if seeds > 1 else "one seed"
    who = f"{_listed(whole)} {'has' if len(whole) == 1 else 'have'} been" if whole else "none has been"
    told = [f"Of the {len(recipe_names())} recipes {who} run whole at the small scale"]
    told += [f"and {_listed(parts)} in part"] if parts else []
    return (
        f"{' '.join(told)}, with {runs}; none at its paper's size. The tables stand "
        "[beside the printed numbers](docs/reproduce.md#measured-here)."
    )


def _is_whole(table: Any) -> bool:
    return all(key in table.values for key in table.work) and len(table.columns) == len(table.recipe.columns)


def _listed(names: list[str]) -> str:
    last = f" and `{names[-1]}`" if len(names) > 1 else ""
    return ", ".join(f"`{name}`" for name in (names[:-1] if last else names)) + last


def _claims(results: Path) -> str:
    """How many claims of the papers hold here, and what became of the others."""
    from generate import claims
    from generate.evidence import CONTRADICTED, NOT_RUN, SUPPORTED, UNDECIDED, UNTESTABLE

    found = [claims.judge_claim(claim, results).verdict for claim in claims.read_claims()]
    texts = {
        SUPPORTED: "supported",
        CONTRADICTED: "contradicted",
        UNDECIDED: "undecided (runs of this size cannot tell)",
        NOT_RUN: "not run",
        UNTESTABLE: "not testable",
    }
    told = [f"{found.count(verdict)} {text}" for verdict, text in texts.items() if verdict in found]
    return f"Of the {len(found)} claims of the five papers in [the ledger](docs/claims.md): {', '.join(told[:-1])}, and {told[-1]}."


def tables() -> str:
    """Every recipe of which something is stored: both numbers side by side, what differs, and what made it."""
    from potluck.recipes.recipe import find_recipe
    from potluck.recipes.store import read_cells, read_curves, stored_table

    cells, curves = read_cells(CELLS), read_curves(CELLS)
    if not cells:
        return "Nothing is stored yet."
    found = [
        stored_table(find_recipe(name), SCALE, cells, curves)
        for name in dict.fromkeys(one.recipe for one in cells)
    ]
    had = {table.work[key].data.name for table in found for key in table.values}
    parts = [_part(table, [one for one in cells if one.recipe == table.recipe.name], had) for table in found]
    return "\n\n".join([_heading(cells), *parts, _waiting({table.recipe.name for table in found})])


def _waiting(run: set[str]) -> str:
    from potluck.recipes.recipe import recipe_names

    names = [f"`{name}`" for name in recipe_names() if name not in run]
    return f"Nothing is stored of {', '.join(names)}." if names else "Something is stored of every recipe."


def _heading(cells: list[Any]) -> str:
    seconds = {(one.recipe, one.row, one.experiment): one.core_seconds or 0 for one in cells}
    made = sorted({f"{one.versions}; {one.machine}" for one in cells})
    return (
        f"{len(seconds)} runs, {sum(seconds.values()) / 60:.0f} minutes of processor time in all, at `--scale {SCALE}`; "
        f"code of {', '.join(sorted({one.commit for one in cells}))}; {'; '.join(made)}. "
        "Read [the claims](claims.md) for what these numbers can carry."
    )


def _part(table: Any, cells: list[Any], had: set[str]) -> str:
    from potluck.recipes.tables import blocks, mechanism_lines, scale_lines

    parts = blocks(table)
    heads = [f"{heading}, {name}" for heading, columns in parts for name, _ in columns]
    lines = [f"### {table.recipe.title}", "", f"`{cells[0].command}`", ""]
    lines += ["| method | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for position, row in enumerate(table.rows):
        shown = [column[position] for _, columns in parts for _, column in columns]
        lines.append("| " + " | ".join([row, *shown]) + " |")
    seeds = ", ".join(map(str, table.seeds))
    told = (
        " ".join([*scale_lines(table)[1:], *mechanism_lines(table)]) + _absent(table, had) + _without(table)
    )
    return "\n".join([*lines, "", f"Seed {seeds}. {told}"])


def _without(table: Any) -> str:
    """Rows that have no result in columns where others have one: runs that failed, or are still to come."""
    from potluck.recipes.recipe import NO_CELL

    rows = [
        row
        for row in table.recipe.rows
        if not any(key[0] == row for key in table.values)
        and any(table.recipe.printed(row, name) != NO_CELL for name in table.columns)
    ]
    note = f"the notes of `potluck recipes {table.recipe.name}` say why where that is known"
    return f" Without a result: {', '.join(rows)} ({note})." if rows else ""


def _absent(table: Any, had: set[str]) -> str:
    """Columns of which nothing is stored; sets that no stored run has had are named."""
    recipe = table.recipe
    absent = [name for name in recipe.columns if name not in table.columns]
    settings = {recipe.columns[name].setting for name in absent}
    sets = {one.data.name for (_, setting, _), one in table.work.items() if setting in settings} - had
    reason = f" ({', '.join(sorted(sets))}: data not at hand)" if sets else ""
    return f" Not measured: {', '.join(recipe.heading(name) for name in absent)}{reason}." if absent else ""
