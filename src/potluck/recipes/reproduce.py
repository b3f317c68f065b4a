"""Measure a paper's table again: plan its cells, run them setting by setting, keep what each one gave."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from potluck.api import execute
from potluck.core.errors import PotluckError, unknown
from potluck.experiment import Experiment, parse_experiment
from potluck.experiment.differences import comparable_experiments
from potluck.experiment.sections import DataSettings
from potluck.federation.population import experiment_data
from potluck.loop.callbacks import Callback
from potluck.recipes.budget import Budget, BudgetSpentError, ProcessorMeter, read_processor_time
from potluck.recipes.content import Values, merged
from potluck.recipes.counting import count_run
from potluck.recipes.measures import RELATIVE, Activity, activity, measure, relative
from potluck.recipes.recipe import Recipe, slug
from potluck.recipes.scale import Scale, at_scale, differences
from potluck.recipes.times import TimeMeter
from potluck.runs.folder import SUMMARY
from potluck.runs.read import read_run
from potluck.runs.run import Run
from potluck.runs.writer import provenance

Key = tuple[str, str, int]
"""Row, setting and seed: one run, which serves every column of its setting."""

OnRunEnd = Callable[[Key, Run, float | None], None]
"""Called with every complete run and its processor seconds; None where they are not recorded."""


def ignore_run(key: Key, run: Run, core_seconds: float | None) -> None:
    """Ignore a complete run, for a reproduction that is not stored."""


@dataclass(frozen=True)
class Cell:
    """What the paper prints, and what was measured: a value per seed, nan where a target was not reached."""

    printed: str
    values: tuple[float, ...] = ()
    failed: bool = False
    idle: bool = False

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
    rounds_share: float | None = None
    values: dict[Key, dict[str, float]] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)
    activity: dict[Key, Activity] = field(default_factory=dict)

    def cell(self, row: str, column: str) -> Cell:
        """Return a cell as far as it is known."""
        own = self._plain_cell(row, column)
        name = self.recipe.columns[column].measure
        if name not in RELATIVE:
            return own
        first = self._plain_cell(next(iter(self.recipe.rows)), column)
        return replace(own, values=(relative(name, first.mean, own.mean),) if own.values else ())

    def _plain_cell(self, row: str, column: str) -> Cell:
        keys = [(row, self.recipe.columns[column].setting, seed) for seed in self.seeds]
        values = tuple(self.values[key][column] for key in keys if column in self.values.get(key, {}))
        idle = any(key in self.activity and not self.activity[key].acts for key in keys)
        return Cell(self.recipe.printed(row, column), values, any(key in self.failures for key in keys), idle)


def plan(
    recipe: Recipe,
    scale: Scale,
    *,
    seeds: Sequence[int] = (0,),
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    change: Callable[[Values], Values] = lambda values: values,
    rounds_share: float | None = None,
) -> Reproduction:
    """Return the work behind the rows and columns asked for (else all); `change` puts a user's settings on top.

    `rounds_share` is the share of the paper's rounds at the full scale.
    """
    build = partial(_values_at, recipe, scale=scale, rounds_share=rounds_share)
    chosen_rows = _chosen("row", rows, recipe.rows)
    chosen_columns = _chosen("column", columns, recipe.columns)
    work: dict[Key, Experiment] = {}
    differs: dict[str, list[tuple[str, str]]] = {}
    for setting in dict.fromkeys(recipe.columns[name].setting for name in chosen_columns):
        for (row, seed), experiment in _experiments(
            recipe, setting, build, seeds, chosen_rows, change
        ).items():
            if row not in chosen_rows or not recipe.runs(row, setting, chosen_columns):
                continue
            work[row, setting, seed] = experiment
            for name, pair in differences(parse_experiment(recipe.values(row, setting)), experiment).items():
                if pair not in differs.setdefault(name, []):
                    differs[name].append(pair)
    return Reproduction(
        recipe, scale, tuple(seeds), chosen_rows, chosen_columns, work, differs, rounds_share=rounds_share
    )


def _values_at(recipe: Recipe, row: str, setting: str, *, scale: Scale, rounds_share: float | None) -> Values:
    """Return the experiment behind a row's cells on a setting, at a scale."""
    if recipe.counted:
        return recipe.values(row, setting)
    own = recipe.scale_values(scale, row, setting) if scale in ("small", "full") else {}
    values = at_scale(recipe.values(row, setting), scale, own, rounds_share)
    if scale == "smoke" and recipe.figure is not None and recipe.figure.reads_networks:
        return merged(values, {"engine": {"checkpoint_every": 1}})
    return values


def _experiments(
    recipe: Recipe,
    setting: str,
    build: Callable[[str, str], Values],
    seeds: Sequence[int],
    chosen: Sequence[str],
    change: Callable[[Values], Values],
) -> dict[tuple[str, int], Experiment]:
    """Return all rows on one setting, also those not asked for: what one method needs held out is held out for all."""
    keys = [(row, seed) for seed in seeds for row in recipe.rows if recipe.runs(row, setting, recipe.columns)]
    values = []
    for row, seed in keys:
        try:
            settings = build(row, setting)
            values.append({**(change(settings) if row in chosen else settings), "seed": seed})
            parse_experiment(values[-1]).build_method()
        except PotluckError as error:
            raise PotluckError(f"Recipe {recipe.name!r}, {row} on {setting}: {error}") from None
    return dict(zip(keys, comparable_experiments(values), strict=True))


def _chosen(kind: str, chosen: Sequence[str], available: Iterable[str]) -> tuple[str, ...]:
    """Return names as the recipe writes them, in its order, from names in any case."""
    by_name = {name.casefold(): name for name in available}
    for name in chosen:
        if name.casefold() not in by_name:
            raise unknown(f"{kind} of this recipe", name, by_name.values())
    return tuple(
        name for low, name in by_name.items() if not chosen or low in {item.casefold() for item in chosen}
    )


def check_data(table: Reproduction) -> None:
    """Open every data set before anything is trained; where one is missing, say so and what can be run without it."""
    if table.recipe.counted:
        return
    problems: dict[DataSettings, PotluckError | None] = {}
    for experiment in table.work.values():
        if experiment.data not in problems:
            problems[experiment.data] = _missing(experiment)
    errors = [error for error in problems.values() if error is not None]
    if not errors:
        return
    settings = {
        setting for (_, setting, _), experiment in table.work.items() if problems[experiment.data] is None
    }
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
    """Return the folder of one run."""
    row, setting, seed = key
    return out / slug(setting) / f"{slug(row)}-seed{seed}"


def run_labels(table: Reproduction) -> list[str]:
    """Return what each run is called while it goes on, in their order."""
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
    ended: OnRunEnd = ignore_run,
    command: str = "",
    budget: Budget | None = None,
) -> bool:
    """Do the work in order; `keep` is told after every run. One that fails is on record, the others go on.

    Runs whose values are there already are left alone. Returns False where the budget was spent before the end.
    """
    for label, (key, experiment) in zip(run_labels(table), table.work.items(), strict=True):
        if key in table.values:
            continue
        path = run_path(out, key)
        try:
            if budget is not None and budget.spent and not (path / SUMMARY).exists():
                return False
            _do(table, key, experiment, path, watch(label), ended, command, budget)
        except BudgetSpentError:
            return False
        except Exception as error:
            table.failures[key] = _sentence(error)
            if not isinstance(error, PotluckError):  # not a user's mistake: the traceback helps to correct it
                traceback.print_exc()
        keep(table)
    return True


def _do(
    table: Reproduction,
    key: Key,
    experiment: Experiment,
    path: Path,
    watching: AbstractContextManager[list[Callback]],
    ended: OnRunEnd,
    command: str,
    budget: Budget | None,
) -> None:
    """Train one run to its end, or continue it, and measure it."""
    if table.recipe.counted:
        count_run(experiment, path, command)
        ended(key, collect(table, key, path), None)
        return
    meter = ProcessorMeter(path, str(provenance().get("commit", "")))
    extra: list[Callback] = [meter, TimeMeter(path), *([] if budget is None else [budget])]
    with watching as callbacks:
        run = execute(experiment, out=path, resume=True, callbacks=[*callbacks, *extra], command=command)
    if not run.was_finished:
        meter.write()
    ended(key, collect(table, key, path), read_processor_time(path)[0] or None)


def collect(table: Reproduction, key: Key, path: Path) -> Run:
    """Measure a finished run for every column of its setting."""
    run = read_run(path)
    table.values[key] = {
        name: measure(
            run, column.measure, column.target_at(table.scale), column.field, table.recipe.rows[key[0]].copies
        )
        for name in table.columns
        if (column := table.recipe.columns[name]).setting == key[1]
    }
    acted = None if table.recipe.counted else activity(table.work[key].method.name, run)
    if acted is not None:
        table.activity[key] = acted
    return run


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, PotluckError) else f"{type(error).__name__}: {error}"
