"""Measure a paper's table again: plan its cells, run them setting by setting, keep what each one gave."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from potluck.api import execute
from potluck.core.errors import PotluckError, unknown
from potluck.experiment import Experiment, parse_experiment
from potluck.experiment.comparable import comparable
from potluck.experiment.sections import DataSettings
from potluck.federation.population import experiment_data
from potluck.loop.callbacks import Callback
from potluck.recipes.measures import measure
from potluck.recipes.recipe import Recipe, Values, slug
from potluck.recipes.scale import Scale, differences, scaled
from potluck.runs.read import read_run
from potluck.runs.run import Run

Key = tuple[str, str, int]
"""Row, setting and seed: one run, which serves every column of its setting."""

Ended = Callable[[Key, Run, float | None], None]
"""Told of every run that is whole, with the processor time that it took; none where it was there before."""


def tell_nobody(key: Key, run: Run, core_seconds: float | None) -> None:
    """For a reproduction that is not stored."""


@dataclass(frozen=True)
class Cell:
    """What the paper prints, and what was measured: a value per seed, nan where a target was not reached."""

    printed: str
    values: tuple[float, ...] = ()
    failed: bool = False

    @property
    def known(self) -> list[float]:
        """The values that are numbers."""
        return [value for value in self.values if math.isfinite(value)]

    @property
    def mean(self) -> float:
        """Mean over seeds; nan where there is none."""
        return float(np.mean(self.known)) if self.known else math.nan

    @property
    def std(self) -> float:
        """Standard deviation over seeds; nan for a single one."""
        return float(np.std(self.known, ddof=1)) if len(self.known) > 1 else math.nan


@dataclass
class Reproduction:
    """A table in the making: what is to be run, and what the runs that ended gave or failed with."""

    recipe: Recipe
    scale: Scale
    seeds: tuple[int, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    work: dict[Key, Experiment]
    differs: dict[str, list[tuple[str, str]]]
    values: dict[Key, dict[str, float]] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)

    def cell(self, row: str, column: str) -> Cell:
        """A cell as far as it is known."""
        own = self._plain_cell(row, column)
        if self.recipe.columns[column].measure != "speed-up":
            return own
        first = self._plain_cell(next(iter(self.recipe.rows)), column)
        return Cell(own.printed, (first.mean / own.mean,) if own.values else (), own.failed)

    def _plain_cell(self, row: str, column: str) -> Cell:
        keys = [(row, self.recipe.columns[column].setting, seed) for seed in self.seeds]
        values = tuple(self.values[key][column] for key in keys if column in self.values.get(key, {}))
        return Cell(self.recipe.printed(row, column), values, any(key in self.failures for key in keys))


def plan(
    recipe: Recipe,
    scale: Scale,
    *,
    seeds: Sequence[int] = (0,),
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    change: Callable[[Values], Values] = lambda values: values,
) -> Reproduction:
    """The work behind the rows and columns asked for (else all); `change` puts a user's settings on top."""
    chosen_rows = _chosen("row", rows, recipe.rows)
    chosen_columns = _chosen("column", columns, recipe.columns)
    work: dict[Key, Experiment] = {}
    differs: dict[str, list[tuple[str, str]]] = {}
    for setting in dict.fromkeys(recipe.columns[name].setting for name in chosen_columns):
        for (row, seed), experiment in _experiments(
            recipe, setting, scale, seeds, chosen_rows, change
        ).items():
            if row not in chosen_rows or not recipe.runs(row, setting, chosen_columns):
                continue
            work[row, setting, seed] = experiment
            for name, pair in differences(parse_experiment(recipe.values(row, setting)), experiment).items():
                if pair not in differs.setdefault(name, []):
                    differs[name].append(pair)
    return Reproduction(recipe, scale, tuple(seeds), chosen_rows, chosen_columns, work, differs)


def _experiments(
    recipe: Recipe,
    setting: str,
    scale: Scale,
    seeds: Sequence[int],
    chosen: Sequence[str],
    change: Callable[[Values], Values],
) -> dict[tuple[str, int], Experiment]:
    """All rows on one setting, also those not asked for: what one method needs held out is held out for all."""
    keys = [(row, seed) for seed in seeds for row in recipe.rows if recipe.runs(row, setting, recipe.columns)]
    values = []
    for row, seed in keys:
        try:
            full = scaled(recipe.values(row, setting), scale, recipe.small_values(row, setting))
            values.append({**(change(full) if row in chosen else full), "seed": seed})
            parse_experiment(values[-1]).build_method()
        except PotluckError as error:
            raise PotluckError(f"Recipe {recipe.name!r}, {row} on {setting}: {error}") from None
    return dict(zip(keys, comparable(values), strict=True))


def _chosen(kind: str, wanted: Sequence[str], there: Iterable[str]) -> tuple[str, ...]:
    """Names as the recipe writes them, in its order, from names in any case."""
    known = {name.casefold(): name for name in there}
    for name in wanted:
        if name.casefold() not in known:
            raise unknown(f"{kind} of this recipe", name, known.values())
    return tuple(
        name for low, name in known.items() if not wanted or low in {one.casefold() for one in wanted}
    )


def check_data(table: Reproduction) -> None:
    """Open every data set before anything is trained; where one is missing, say so and what can be run without it."""
    found: dict[DataSettings, PotluckError | None] = {}
    for experiment in table.work.values():
        if experiment.data not in found:
            found[experiment.data] = _missing(experiment)
    errors = [error for error in found.values() if error is not None]
    if not errors:
        return
    settings = {setting for (_, setting, _), one in table.work.items() if found[one.data] is None}
    columns = [name for name in table.columns if table.recipe.columns[name].setting in settings]
    able = f" What lies here is enough for --columns {','.join(columns)}." if columns else ""
    raise PotluckError(f"{errors[0]}{able}")


def _missing(experiment: Experiment) -> PotluckError | None:
    try:
        experiment_data(experiment)
    except PotluckError as error:
        return error
    return None


def run_path(out: Path, key: Key) -> Path:
    """The folder of one run."""
    row, setting, seed = key
    return out / slug(setting) / f"{slug(row)}-seed{seed}"


def labels(table: Reproduction) -> list[str]:
    """What each run is called while it goes on, in their order."""
    return [
        f"[{number}/{len(table.work)}] {row}, {setting}, seed {seed}"
        for number, (row, setting, seed) in enumerate(table.work, 1)
    ]


def run_all(
    table: Reproduction,
    out: Path,
    *,
    watch: Callable[[str], AbstractContextManager[list[Callback]]],
    keep: Callable[[Reproduction], None],
    ended: Ended = tell_nobody,
    command: str = "",
) -> None:
    """Do the work in order; `keep` is told after every run. One that fails is on record, the others go on."""
    for label, (key, experiment) in zip(labels(table), table.work.items(), strict=True):
        path = run_path(out, key)
        try:
            before = _processor_time()
            with watch(label) as callbacks:
                run = execute(experiment, out=path, resume=True, callbacks=callbacks, command=command)
            spent = None if run.was_finished else _processor_time() - before
            ended(key, collect(table, key, path), spent)
        except Exception as error:
            table.failures[key] = _sentence(error)
            if not isinstance(error, PotluckError):  # not a user's mistake: whoever mends it needs the place
                traceback.print_exc()
        keep(table)


def _processor_time() -> float:
    """What this process and its ended children have spent."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def collect(table: Reproduction, key: Key, path: Path) -> Run:
    """Measure a finished run for every column of its setting."""
    run = read_run(path)
    table.values[key] = {
        name: measure(run, column.measure, column.target, column.field)
        for name in table.columns
        if (column := table.recipe.columns[name]).setting == key[1]
    }
    return run


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, PotluckError) else f"{type(error).__name__}: {error}"
