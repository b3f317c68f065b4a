"""Collect stored results by contender and seed, with confidence intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

MIN_MARGIN = 1.0
"""Points of accuracy below which no lead is told apart, however many seeds agree."""
UNKNOWN_MARGIN = 2.0
"""Points within which single values are not told apart where the number of test samples is not known."""
CONFIDENCE = 0.95
ROWS = {"cifar10": 60_000, "cifar100": 60_000, "mnist": 70_000, "fashion-mnist": 70_000}
"""Samples of a whole data set, training and test part together."""
TEST_SHARE = {"cifar10": 1 / 6, "cifar100": 1 / 6, "mnist": 1 / 7, "fashion-mnist": 1 / 7}
"""How much of a data set is its publisher's test part; a smaller sample keeps the share."""


@dataclass(frozen=True)
class Spread:
    """The standard deviation over seeds of the difference between two methods, in points, and its degrees of freedom."""

    deviation: float = 0.0
    freedom: int = 0
    source: str = "nowhere"


@dataclass(frozen=True)
class Score:
    """What one contender got in one place: a value for each seed, and the test samples that one value is of.

    `spread` is how far differences vary over seeds elsewhere, for contenders that have one seed.
    """

    by_seed: Mapping[int, float]
    tested: int = 0
    spread: Spread = Spread()

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(np.mean(list(self.by_seed.values())))


CELL_FILES = {"small": "papers.csv", "full": "full.csv"}

Scores = dict[str, dict[str, Score]]
"""For each place (a column of a table, a task of a suite) what each contender got there."""


def margins(pairs: Sequence[tuple[Score, Score]], rivals: int = 1) -> list[float]:
    """How large each pair's difference, in points, must be to be more than chance, at 95 %.

    Where pairs have seeds in common: by the spread of the differences over seeds, pooled over the pairs. With single
    values: by the standard error of two shares of so many test samples, or by the spread over seeds that was seen
    elsewhere, whichever is larger. A rival that is the best of several is one of so many comparisons (Bonferroni).
    """
    from scipy.stats import norm, t

    tail = 1 - (1 - CONFIDENCE) / (2 * max(1, rivals))
    differences = [
        [a.by_seed[seed] - b.by_seed[seed] for seed in a.by_seed if seed in b.by_seed] for a, b in pairs
    ]
    freedom = sum(max(0, len(each) - 1) for each in differences)
    if not freedom:
        return [_of_one_seed(a, b, tail, float(norm.ppf(tail))) for a, b in pairs]
    pooled = sum(float(np.var(each)) * len(each) for each in differences if len(each) > 1) / freedom
    factor = float(t.ppf(tail, freedom))
    return [max(MIN_MARGIN, factor * math.sqrt(pooled / max(1, len(each)))) for each in differences]


def _of_one_seed(a: Score, b: Score, tail: float, normal: float) -> float:
    from scipy.stats import t

    spread = a.spread
    training = float(t.ppf(tail, spread.freedom)) * spread.deviation if spread.freedom else 0.0
    if not (a.tested and b.tested):
        return max(UNKNOWN_MARGIN, training)
    variance = sum((score.mean / 100) * (1 - score.mean / 100) / score.tested for score in (a, b))
    return max(MIN_MARGIN, 100 * normal * math.sqrt(max(0.0, variance)), training)


SPREAD_SUITES = ("cpu", "gain")
"""Where the spread over seeds is taken from as long as rows of the full scale have too few: the first that has enough."""
LEAST_FREEDOM = 4


def training_spread(results: Path) -> Spread:
    """How differences between methods vary over seeds: in rows of the full scale, else in the benchmark's images."""
    files = [results / CELL_FILES["full"], *(results / f"{name}.csv" for name in SPREAD_SUITES)]
    return _training_spread(results, *map(_stamp, files))


@cache
def _training_spread(results: Path, *_: int) -> Spread:
    sources = {"the full scale": _full_values(results)}
    sources |= {f"the suite {name}": _suite_values(results, name) for name in SPREAD_SUITES}
    for source, values in sources.items():
        spreads = _pooled_spread(values, source)
        if spreads.freedom >= LEAST_FREEDOM:
            return spreads
    return Spread()


def _pooled_spread(values: Mapping[str, Mapping[str, Mapping[int, float]]], source: str) -> Spread:
    """Pool the variance over seeds of every contender's difference to the first one of its place."""
    total, freedom = 0.0, 0
    for contenders in values.values():
        first, *rivals = contenders.values()
        for rival in rivals:
            differences = [rival[seed] - first[seed] for seed in rival if seed in first]
            if len(differences) > 1:
                total += float(np.var(differences)) * len(differences)
                freedom += len(differences) - 1
    return Spread(math.sqrt(total / freedom), freedom, source) if freedom else Spread()


def _full_values(results: Path) -> dict[str, dict[str, dict[int, float]]]:
    from potluck.recipes.recipe import find_recipe
    from potluck.recipes.store import read_cells

    by_setting: dict[str, dict[str, dict[int, float]]] = {}
    for cell in read_cells(results / CELL_FILES["full"]):
        column = find_recipe(cell.recipe).columns.get(cell.column)
        if cell.here is not None and column is not None and column.measure == "best":
            place = by_setting.setdefault(f"{cell.recipe} {cell.column}", {})
            place.setdefault(cell.row, {})[cell.seed] = cell.here
    return by_setting


def _suite_values(results: Path, suite: str) -> dict[str, dict[str, dict[int, float]]]:
    from potluck.suites.store import Results

    by_setting: dict[str, dict[str, dict[int, float]]] = {}
    for row in Results.read(results, suite).rows:
        by_setting.setdefault(row.task, {}).setdefault(row.method, {})[row.seed] = 100 * float(row.accuracy)
    reference = "standalone"
    return {task: {reference: there.get(reference, {}), **there} for task, there in by_setting.items()}


def read_scores(test: Mapping[str, Any], results: Path) -> Scores:
    """The scores that a claim's test speaks of."""
    sources = {"recipe": _of_recipe, "suite": _of_suite, "trials": _of_trials}
    (source,) = (sources[name] for name in sources if name in test)
    return source(test, results)


def _of_recipe(test: Mapping[str, Any], results: Path) -> Scores:
    """Cells of a recipe; with `value = "seconds"` processor time instead of what was measured.

    A column counts when every row is there that the test speaks of; with `partial` when any is.
    """
    from potluck.recipes.measures import TO_TARGET

    table, cells = read_table(results / CELL_FILES[test.get("scale", "small")], test["recipe"])
    recipe, spread = table.recipe, training_spread(results)
    wanted = test.get("columns") or [n for n in recipe.columns if recipe.columns[n].measure == "best"]
    scores: Scores = {}
    for name in wanted:
        needed = needed_rows(test, recipe, name)
        seconds = test.get("value") == "seconds"
        values = {row: _cell(table, cells, row, name, spread, seconds=seconds) for row in needed}
        with_seeds = {row: score for row, score in values.items() if score.by_seed}
        partial = recipe.columns[name].measure in TO_TARGET or test.get("partial")
        if len(with_seeds) == len(needed) or partial:  # half a column supports nothing
            scores[recipe.heading(name)] = with_seeds
    return scores


def read_table(file: Path, name: str) -> tuple[Any, list[Any]]:
    """A recipe's table as a file of cells fills it, and these cells; read again only when the file has changed."""
    return _read_table(file, _stamp(file), name)


@cache
def _read_table(file: Path, _: int, name: str) -> tuple[Any, list[Any]]:
    from potluck.recipes.recipe import find_recipe
    from potluck.recipes.store import read_cells, read_curves, stored_table

    scale: Any = next(scale for scale, there in CELL_FILES.items() if there == file.name)
    cells = [cell for cell in read_cells(file) if cell.recipe == name]
    return stored_table(find_recipe(name), scale, cells, read_curves(file)), cells


def _stamp(file: Path) -> int:
    """A number that changes with a file; 0 where there is none."""
    return file.stat().st_mtime_ns if file.exists() else 0


NAMES = ("ahead", "behind", "part", "soonest", "equals", "steady")
"""Words of a test that name one row."""
LISTS = ("keeps", "falls", "shows", "spread", "of", "rows")
"""Words of a test that name several."""


def needed_rows(test: Mapping[str, Any], recipe: Any, column: str) -> list[str]:
    """The rows of a column that a test speaks of: those it names, and all that are printed where it names no rivals."""
    from potluck.recipes.recipe import NO_CELL, UNPRINTED

    named = {test[word] for word in NAMES if word in test}
    named |= {name for word in LISTS for name in (test.get(word) or ()) if isinstance(test.get(word), list)}
    alone = {"equals", "steady"} & test.keys()
    needs_rivals = not alone and (not any(test.get(word) for word in LISTS))
    left_out = {*test.get("without", ()), *test.get("failed", ())}
    there = {row: text for row in recipe.rows if (text := recipe.printed(row, column)) != NO_CELL}
    printed = {row for row, text in there.items() if text != UNPRINTED}
    rivals = (printed if len(printed) > 1 else there.keys()) - left_out
    return [row for row in there if row in named or (needs_rivals and row in rivals)]


def _cell(table: Any, cells: list[Any], row: str, column: str, spread: Spread, *, seconds: bool) -> Score:
    """A cell's value for every seed, or the processor time that its runs took; empty where nothing is stored."""
    setting = table.recipe.columns[column].setting
    keys = [key for key in table.values if key[:2] == (row, setting)]
    if not seconds:
        here = {key[2]: table.values[key].get(column, math.nan) for key in keys}
    else:
        spent = {
            cell.seed: cell.core_seconds
            for cell in cells
            if (cell.recipe, cell.row, cell.column) == (table.recipe.name, row, column) and cell.core_seconds
        }
        here = {key[2]: spent.get(key[2], math.nan) for key in keys}
    finite = {seed: value for seed, value in here.items() if math.isfinite(value)}
    return Score(finite, samples_tested(table.work[keys[0]]) if keys else 0, spread)


def samples_tested(experiment: Any) -> int:
    """How many test samples one round's accuracy is of; 0 where that is not known."""
    data = experiment.data
    rows = data.limit or ROWS.get(data.name, 0)
    if experiment.evaluate.protocol == "shared":
        return round(rows * TEST_SHARE.get(data.name, 0))
    parts = [float(part) for part in data.split.split(":")]
    participation = experiment.schedule.participation if experiment.evaluate.protocol == "local" else 1.0
    return round(rows * parts[-1] / sum(parts) * participation)


def _of_suite(test: Mapping[str, Any], results: Path) -> Scores:
    """Rows of a suite: accuracy in per cent, or what `value` names."""
    from potluck.suites.store import Results

    stored = Results.read(results, test["suite"])
    rows = [row for row in stored.rows if row.task in test.get("tasks", [row.task])]
    gathered: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        value = _suite_value(test.get("value", "accuracy"), row, stored.details.get(row.experiment, {}))
        if value is not None:
            gathered.setdefault(row.task, {}).setdefault(row.method, {})[row.seed] = value
    if test.get("value") in ("rounds", "work"):
        _to_common_target(gathered, rows, stored.details, test)
    return {
        task: {method: Score(values) for method, values in methods.items()}
        for task, methods in gathered.items()
    }


def _suite_value(value_name: str, row: Any, details: Mapping[str, Any]) -> float | None:
    if value_name == "numbers":
        return float(row.floats_up + row.floats_down)
    if value_name == "samples":
        return float(row.samples_per_job)
    if value_name == "first":
        return 100 * float(details["curve"][0][1]) if details.get("curve") else None
    if value_name.startswith("note:"):
        curve = (details.get("notes") or {}).get(value_name.removeprefix("note:"))
        return float(curve[-1][1]) if curve else None
    return 100 * float(row.accuracy)


REACHED = 0.9
"""Of the lowest best accuracy among the contenders: a target that all of them reach."""


def _to_common_target(gathered: Any, rows: Any, details: Mapping[str, Any], test: Mapping[str, Any]) -> None:
    """Rounds until a share of the lowest best accuracy among the contenders, in the place of accuracies.

    As `work` it is the samples that a client has trained on by then, for methods whose jobs are not alike.
    """
    named = {test["soonest"], *test["of"]}
    for task, methods in list(gathered.items()):
        own_keys = [
            row for row in rows if row.task == task and row.method in named and details.get(row.experiment)
        ]
        gathered[task] = {}
        if len({row.method for row in own_keys}) < 2:
            del gathered[task]
            continue
        curves = {row.experiment: details[row.experiment]["curve"] for row in own_keys}
        rounds = min(
            curve[-1][0] for curve in curves.values()
        )  # asynchronous curves count answers, not rounds
        target = REACHED * min(value for name in named for value in methods.get(name, {}).values()) / 100
        for row in own_keys:
            curve = curves[row.experiment]
            reached = next((at for at, value in curve if value is not None and value >= target), None)
            if reached is not None:
                worth = row.samples_per_job if test["value"] == "work" else 1.0
                gathered[task].setdefault(row.method, {})[row.seed] = reached / curve[-1][0] * rounds * worth


def _of_trials(test: Mapping[str, Any], results: Path) -> Scores:
    """A method's tuning trials on each task: the best validation accuracy at each value of an option, in per cent.

    With `beside` another method's best trial is among them, under its name.
    """
    from potluck.suites.store import Results

    by_task: dict[str, dict[str, float]] = {}
    for trial in Results.read(results, test["trials"]).trials:
        value = json.loads(trial.settings).get(test["option"]) if trial.method == test["method"] else None
        name = trial.method if trial.method == test.get("beside") else None if value is None else str(value)
        if name is not None and trial.validation is not None:
            there = by_task.setdefault(trial.task, {})
            there[name] = max(there.get(name, 0.0), 100 * trial.validation)
    return {task: {name: Score({0: best}) for name, best in there.items()} for task, there in by_task.items()}


def client_shares(test: Mapping[str, Any], results: Path) -> dict[str, tuple[int, int]]:
    """On each task, how many clients (over all seeds) end better off with one method than with another, and of how many."""
    from potluck.suites.store import Results

    stored = Results.read(results, test["suite"])
    ends = {
        (row.task, row.method, row.seed): stored.details.get(row.experiment, {}).get("clients") or []
        for row in stored.rows
        if row.task in test.get("tasks", [row.task])
    }
    shares: dict[str, tuple[int, int]] = {}
    for (task, method, seed), accuracies in ends.items():
        rival_accuracies = ends.get((task, test["than"], seed), [])
        if method == test["better"] and accuracies and len(accuracies) == len(rival_accuracies):
            better, count = shares.get(task, (0, 0))
            gained = sum(a > b for a, b in zip(accuracies, rival_accuracies, strict=True))
            shares[task] = (better + gained, count + len(accuracies))
    return shares
