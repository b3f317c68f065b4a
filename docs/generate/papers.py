"""Write the papers' tables beside the measured cells: at full size, what was not run, and a line on the small scale."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from generate.agreement import compare_columns
from generate.text import replace_block, table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
CELLS = RESULTS / "papers.csv"
FULL = RESULTS / "full.csv"
ESTIMATES = RESULTS / "full.estimates.json"
JPEG = {"cifar10", "cifar100"}
"""Sets whose copies at hand are not the published bytes."""


def update_page(page: str) -> str:
    """The page with its tables as the stored cells have them."""
    return replace_block(replace_block(page, "papers", tables()), "durations", durations())


CORES = 2
"""Cores of the machine that durations are told for."""


def durations(results: Path = RESULTS) -> str:
    """Return a table of all recipes: runs at the small scale, and minutes where their processor time is stored."""
    from potluck.recipes.recipe import find_recipe, recipe_names
    from potluck.recipes.reproduce import plan
    from potluck.recipes.store import read_cells
    from potluck.suites.provenance import experiment_digest

    cells = read_cells(results / CELLS.name)
    stored = {cell.experiment: cell.core_seconds for cell in cells if cell.core_seconds}
    lines = []
    for name in recipe_names():
        recipe = find_recipe(name)
        work = plan(recipe, "small").work
        seconds = [stored.get(experiment_digest(each)) for each in work.values()]
        duration = "counted" if recipe.counted else minutes([each for each in seconds if each], len(work))
        lines.append((f"`{name}`", len(work), duration))
    return table(("recipe", "runs", f"minutes on {CORES} cores"), lines, numbers=(1, 2))


def minutes(seconds: Sequence[float], runs: int) -> str:
    """Return the minutes of so many runs; estimated from the mean of those that are stored, where some are not."""
    if not seconds:
        return "not measured"
    total = sum(seconds) / len(seconds) * runs / CORES / 60
    return f"{'' if len(seconds) == runs else 'about '}{total:.1f}"


def tables(results: Path = RESULTS) -> str:
    """Tables of the full scale, counted ones last, then what was not run and what the small scale is for."""
    from potluck.recipes.recipe import find_recipe
    from potluck.recipes.store import read_cells, read_curves, stored_table

    cells, curves = read_cells(results / FULL.name), read_curves(results / FULL.name)
    names = dict.fromkeys(cell.recipe for cell in cells)
    stored_tables = [stored_table(find_recipe(name), "full", cells, curves) for name in names]
    stored_tables.sort(key=lambda each: each.recipe.counted)
    parts = [_heading(cells)]
    for each in stored_tables:
        own_cells = [cell for cell in cells if cell.recipe == each.recipe.name]
        parts.append(counted_part(each, own_cells) if each.recipe.counted else full_part(each, own_cells))
    return "\n\n".join([*parts, not_run(results), small_line(results)])


def _heading(cells: Sequence[Any]) -> str:
    runs = {(cell.recipe, cell.row, cell.experiment): cell for cell in cells}
    trained = [cell for cell in runs.values() if cell.core_seconds]
    hours = sum(cell.core_seconds for cell in trained) / 3600
    made = sorted({f"{cell.versions}; {cell.machine}, {cell.processor}" for cell in cells})
    return (
        f"Trained runs at the full scale: {len(trained)}, {hours:.1f} core-hours; counted ones: {len(runs) - len(trained)}"
        f"; {'; '.join(made)}. Each row of the file names its commit, command and data. "
        "Read [the claims](claims.md) for what these numbers can carry."
    )


def full_part(full: Any, cells: Sequence[Any]) -> str:
    """A trained table: both numbers, rounds, agreement with the printed order, curves, what differs and what made it."""
    rows = [row for row in full.rows if any(key[0] == row for key in full.values)]
    shown = replace(full, rows=tuple(rows))
    lines = [f"### {full.recipe.title}", "", *_commands(cells, "the paper's data"), "", *_beside(shown), ""]
    lines += [
        f"* {line}" for line in [_rounds(shown, cells), *_agreements(shown, cells), *_mechanisms(shown)]
    ]
    lines += [f"* {line}" for line in (_differences(shown), _absent(full, rows), _provenance(cells)) if line]
    for path in _figures(full):
        lines += ["", f"![Accuracy over rounds]({path})"]
    return "\n".join(lines)


def counted_part(full: Any, cells: Sequence[Any]) -> str:
    """A table that follows from shapes alone."""
    from potluck.recipes.tables import scale_lines

    lines = [
        f"### {full.recipe.title}",
        "",
        *_commands(cells, "about a minute, and no data"),
        "",
        *_beside(full),
        "",
    ]
    lines += scale_lines(full)
    return "\n".join([*lines, *full.recipe.notes[1:]])


def _commands(cells: Sequence[Any], needed: str = "") -> list[str]:
    """Return a block of the commands that made the cells, each marked with what a reader needs for it."""
    remark = f"   # needs {needed}" if needed else ""
    commands = dict.fromkeys(_public(cell.command) + remark for cell in cells)
    return ["```", *commands, "```"]


def _public(command: str) -> str:
    """A command without the folder of the data and the file of the results, which are elsewhere for others."""
    words, public_words = command.split(), list[str]()
    while words:
        word = words.pop(0)
        if word in ("--data-root", "--out", "--store"):
            words[:1] = []
        elif word != "-q":
            public_words.append(word)
    return " ".join(public_words)


def _beside(full: Any) -> list[str]:
    """The table with the printed and the measured numbers."""
    from potluck.recipes.tables import blocks

    parts = blocks(full)
    heads = [f"{heading}, {name}" for heading, columns in parts for name, _ in columns]
    lines = ["| method | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for position, row in enumerate(full.rows):
        cells = [column[position] for _, columns in parts for _, column in columns]
        lines.append("| " + " | ".join([row, *cells]) + " |")
    return lines


def _rounds(full: Any, cells: Sequence[Any]) -> str:
    by_text: dict[str, list[str]] = {}
    for cell in cells:
        if cell.row in full.rows:
            rows = by_text.setdefault(f"{cell.rounds} of the paper's {cell.paper_rounds}", [])
            rows += [cell.row] if cell.row not in rows else []
    sentences = [
        text + (f" ({', '.join(rows)})" if len(by_text) > 1 else "") for text, rows in by_text.items()
    ]
    seeds, kinds = sorted({cell.seed for cell in cells}), sorted({cell.precision for cell in cells})
    text = f"Rounds: {'; '.join(sentences)}. Seed {', '.join(map(str, seeds))}. Losses in {', '.join(kinds)}."
    picked = {each.evaluate.select for each in full.work.values()}
    if picked == {"test"}:
        text += " Best rounds are picked on the test samples, as in the paper, which flatters every row."
    return text


def _agreements(full: Any, cells: Sequence[Any]) -> list[str]:
    """How each column's order agrees with the printed one, of rows with the same rounds."""
    rounds: dict[tuple[str, str], set[int | None]] = {}
    for cell in cells:
        rounds.setdefault((cell.row, cell.column), set()).add(cell.rounds)
    return [f"{full.recipe.heading(name)}: {each}." for name, each in compare_columns(full, rounds).items()]


def _mechanisms(full: Any) -> list[str]:
    from potluck.recipes.tables import mechanism_lines

    return mechanism_lines(full)


def _differences(full: Any) -> str:
    """Settings that are not the paper's, but for the rounds, which each row states."""
    remaining = {name: pairs for name, pairs in full.differs.items() if name != "schedule.rounds"}
    text = "; ".join(
        f"{name} " + ", ".join(f"{paper} → {here}" for paper, here in pairs)
        for name, pairs in remaining.items()
    )
    return f"Not as in the paper, beside the rounds (paper → here): {text}." if text else ""


def _absent(full: Any, rows: Sequence[str]) -> str:
    recipe = full.recipe
    columns = [recipe.heading(name) for name in recipe.columns if name not in full.columns]
    absent = [row for row in recipe.rows if row not in rows]
    sentences = [f"rows {', '.join(absent)}"] if absent else []
    sentences += [f"columns {', '.join(columns)}"] if columns else []
    return f"Not run: {'; '.join(sentences)}." if sentences else ""


def _provenance(cells: Sequence[Any]) -> str:
    commits = dict.fromkeys(cell.commit for cell in cells)
    data = dict.fromkeys(cell.data for cell in cells)
    runs = {cell.experiment: cell.core_seconds or 0 for cell in cells}
    text = (
        f"Code of {', '.join(commits)}; data {', '.join(data)}; {sum(runs.values()) / 3600:.2f} core-hours."
    )
    if any(name.split(" ")[0] in JPEG for name in data):
        text += " The CIFAR images at hand were once stored as JPEG of quality 95: they are not the published bytes."
    return text


def _figures(full: Any) -> list[str]:
    from generate.curves import curve_files

    return [f"figures/{path.name}" for path in curve_files(full)]


def not_run(results: Path = RESULTS) -> str:
    """What the next runs are and what each will cost, as far as it was estimated."""
    file = results / ESTIMATES.name
    head = "### Not run at full size"
    if not file.exists():
        return f"{head}\n\nNothing is estimated yet."
    stored = json.loads(file.read_text(encoding="utf-8"))
    lines = [
        (f"`{_public(cell['command'])}`", cell["runs"], f"{cell['core_hours']:.1f}", f"{cell['hours']:.1f}")
        for cell in stored.values()
    ]
    text = table(("command", "runs", "core-hours", "hours"), lines, numbers=(1, 2, 3))
    return f"{head}\n\nEstimated with `--estimate` on this machine while other work ran on it; hours are with nothing else running.\n\n{text}"


def small_line(results: Path = RESULTS) -> str:
    """One line on the rows of the small scale."""
    from potluck.recipes.store import read_cells

    cells = read_cells(results / CELLS.name)
    runs = {(cell.recipe, cell.row, cell.experiment) for cell in cells}
    names = dict.fromkeys(cell.recipe for cell in cells)
    return (
        "### At the small scale\n\n"
        f"{len(runs)} runs of {', '.join(f'`{name}`' for name in names)} are stored in `results/papers.csv`. They have some "
        f"ten epochs on a few thousand images, show that each method learns, and decide nothing. {unclean_sentence(cells)}"
    ).rstrip()


def unclean_sentence(cells: Sequence[Any]) -> str:
    """Say which rows come from a source with changes that no commit holds; nothing where there are none."""
    unclean = [cell for cell in cells if "+" in cell.commit or not cell.commit]
    if not unclean:
        return ""
    commits = ", ".join(sorted({cell.commit or "none" for cell in unclean}))
    recipes = dict.fromkeys(cell.recipe for cell in unclean)
    part = (
        f" (of {', '.join(f'`{name}`' for name in recipes)})"
        if len(recipes) < len({cell.recipe for cell in cells})
        else ""
    )
    return (
        f"{len(unclean)} of the {len(cells)} rows{part} come from a source with changes that are in no commit: the column "
        f"`commit` of the file ends with + ({commits})."
    )


# -- the front page ------------------------------------------------------------------------------------------------


def update_readme(readme: str, results: Path = RESULTS) -> str:
    """The front page with what the stored cells and the ledger come to, in a few sentences."""
    return replace_block(readme, "papers", f"{reproduction_status(results)}\n\n{_claims(results)}")


def reproduction_status(results: Path) -> str:
    """Which tables were trained at full size and how far, and which were counted."""
    from potluck.recipes.recipe import find_recipe, recipe_names
    from potluck.recipes.store import read_cells

    cells = read_cells(results / FULL.name)
    counted = [name for name in recipe_names() if find_recipe(name).counted]
    complete = [name for name in counted if any(cell.recipe == name for cell in cells)]
    trained = [
        _attempt(name, cells) for name in dict.fromkeys(cell.recipe for cell in cells) if name not in counted
    ]
    text = f"Of the {len(recipe_names())} recipes, {len(complete)} are counted at the paper's size"
    text += f" and {len(trained)} attempted there in part: {'; '.join(trained)}. " if trained else ". "
    return text + "The tables stand [beside the printed numbers](docs/reproduce.md#measured-here)."


def _attempt(name: str, cells: Sequence[Any]) -> str:
    """How much of a recipe was run at full size."""
    from potluck.recipes.recipe import find_recipe

    own_cells, recipe = [cell for cell in cells if cell.recipe == name], find_recipe(name)
    rows, columns = ({getattr(cell, kind) for cell in own_cells} for kind in ("row", "column"))
    rounds = sorted({f"{cell.rounds} of {cell.paper_rounds} rounds" for cell in own_cells})
    return (
        f"`{name}`, {len(rows)} of {len(recipe.rows)} rows and {len(columns)} of {len(recipe.columns)} columns for "
        f"{', '.join(rounds)}"
    )


def _claims(results: Path) -> str:
    """How many claims of the papers hold here, and what became of the others."""
    from generate import claims
    from generate.evidence import CONTRADICTED, NOT_RUN, SUPPORTED, UNDECIDED, UNTESTABLE

    verdicts = [claims.judge_claim(claim, results).verdict for claim in claims.read_claims()]
    texts = {
        SUPPORTED: "supported",
        CONTRADICTED: "contradicted",
        UNDECIDED: "undecided (runs of this size cannot tell)",
        NOT_RUN: "not run",
        UNTESTABLE: "not testable",
    }
    counts = [f"{verdicts.count(verdict)} {text}" for verdict, text in texts.items() if verdict in verdicts]
    return f"Of the {len(verdicts)} claims of the five papers in [the ledger](docs/claims.md): {', '.join(counts[:-1])}, and {counts[-1]}."
