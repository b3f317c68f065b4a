"""Measured cells as data: a line of a CSV file per cell and seed, added as runs end."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from potluck.benchmark.digests import experiment_digest
from potluck.benchmark.lines import from_line, to_csv
from potluck.core.errors import PotluckError
from potluck.core.files import read_text
from potluck.recipes.recipe import NO_CELL, Recipe
from potluck.recipes.reproduce import Key, Reproduction, plan
from potluck.recipes.scale import Scale
from potluck.runs.folder import write_atomic
from potluck.runs.run import Run


@dataclass(frozen=True)
class StoredCell:
    """What one seed gave for one cell, and where it came from. `here` is empty where a target was not reached."""

    recipe: str
    scale: str
    row: str
    column: str
    seed: int
    paper: str
    here: float | None
    method: str
    experiment: str
    commit: str
    versions: str
    machine: str
    date: str
    command: str
    core_seconds: float | None

    @property
    def place(self) -> tuple[str, str, str, str, int]:
        """Which cell it is; one line is kept of each."""
        return self.recipe, self.scale, self.row, self.column, self.seed


def read_cells(file: Path) -> list[StoredCell]:
    """What lies in a file; nothing where there is none."""
    if not file.exists():
        return []
    lines = csv.DictReader(io.StringIO(read_text(file)))
    names = [one.name for one in fields(StoredCell)]
    if lines.fieldnames != names:
        raise PotluckError(
            f"{str(file)!r} does not hold measured cells: its columns are not {', '.join(names)}; choose another file."
        )
    return [from_line(StoredCell, line) for line in lines]


def add_cells(file: Path, cells: list[StoredCell]) -> None:
    """Keep cells, each in the place of an earlier one; a run that was only read again keeps its time."""
    known = {one.place: one for one in read_cells(file)}
    for cell in cells:
        before = known.get(cell.place)
        if cell.core_seconds is None and before is not None and before.experiment == cell.experiment:
            cell = replace(cell, core_seconds=before.core_seconds)
        known[cell.place] = cell
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, to_csv(StoredCell, [known[place] for place in sorted(known)]))
    except OSError as error:
        raise PotluckError(
            f"--store {str(file)!r} cannot be written ({error.strerror}); choose another file."
        ) from None


def stored_table(recipe: Recipe, scale: Scale, cells: Sequence[StoredCell]) -> Reproduction:
    """A recipe's table filled with what is stored of it; cells of other settings than the recipe's now are left out."""
    mine = [one for one in cells if (one.recipe, one.scale) == (recipe.name, scale)]
    table = plan(recipe, scale, seeds=sorted({one.seed for one in mine}) or [0])
    digests = {key: experiment_digest(experiment) for key, experiment in table.work.items()}
    for cell in mine:
        column = recipe.columns.get(cell.column)
        key = (cell.row, column.setting if column else "", cell.seed)
        if digests.get(key) == cell.experiment:
            here = math.nan if cell.here is None else cell.here
            table.values.setdefault(key, {})[cell.column] = here
    whole = {setting for _, setting, _ in table.values}
    columns = tuple(name for name in table.columns if recipe.columns[name].setting in whole)
    return replace(table, columns=columns)


def cells_of(table: Reproduction, key: Key, run: Run, core_seconds: float | None) -> list[StoredCell]:
    """The cells that one finished run fills; what made it is what its folder says."""
    row, setting, seed = key
    experiment, made = table.work[key], run.summary.get("made", {})
    return [
        StoredCell(
            recipe=table.recipe.name,
            scale=table.scale,
            row=row,
            column=name,
            seed=seed,
            paper=table.recipe.printed(row, name),
            here=value if math.isfinite(value) else None,
            method=experiment.method.name,
            experiment=experiment_digest(experiment),
            commit=str(made.get("commit") or ""),
            versions=", ".join(f"{one} {made.get(one, '?')}" for one in ("potluck", "torch", "python")),
            machine=str(made.get("machine") or ""),
            date=str(made.get("started") or "")[:10],
            command=run.command,
            core_seconds=core_seconds,
        )
        for name, value in table.values[key].items()
        if table.recipe.columns[name].setting == setting and table.recipe.printed(row, name) != NO_CELL
    ]
