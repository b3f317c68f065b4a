"""What stored results say about a claim: a figure in words, and a verdict that follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
LEVEL = {"recipe": 2.0, "suite": 1.0}
"""Points of accuracy within which two are not told apart: by one run on a thousand test samples, by three seeds."""

HOLDS, FAILS, UNTOLD = "holds here", "does not hold here", "not at this scale"
GPU, UNTESTABLE, NOT_RUN = "needs a GPU", "not testable", "not run yet"
VERDICTS = (HOLDS, FAILS, UNTOLD, GPU, UNTESTABLE, NOT_RUN)

Scores = dict[str, dict[str, float]]
"""For each place (a column of a table, a task of a suite) what each contender got there."""


@dataclass(frozen=True)
class Finding:
    """What came out, and what follows for the claim."""

    figure: str
    verdict: str


NOTHING = Finding("nothing stored", NOT_RUN)


def finding(test: Mapping[str, Any], results: Path = RESULTS) -> Finding:
    """Judge a claim's test by the stored results."""
    scores = _scores(test, results)
    (kind,) = (name for name in JUDGES if name in test)
    return JUDGES[kind](test, scores)


def _scores(test: Mapping[str, Any], results: Path) -> Scores:
    sources = {"recipe": _table_scores, "suite": _suite_scores, "trials": _trial_scores}
    (source,) = (sources[name] for name in sources if name in test)
    return source(test, results)


def _table_scores(test: Mapping[str, Any], results: Path) -> Scores:
    """Cells of a recipe, means over seeds; with `value = "seconds"` processor time instead of what was measured."""
    from potluck.recipes.measures import TO_TARGET
    from potluck.recipes.recipe import NO_CELL, find_recipe
    from potluck.recipes.store import read_cells, stored_table

    recipe, cells = find_recipe(test["recipe"]), read_cells(results / "papers.csv")
    table = stored_table(recipe, "small", cells)
    wanted = test.get("columns") or [n for n in recipe.columns if recipe.columns[n].measure == "best"]
    found: Scores = {}
    for name in wanted:
        seconds = test.get("value") == "seconds"
        means = {row: _mean(table, cells, row, name, seconds=seconds) for row in recipe.rows}
        known = {row: value for row, value in means.items() if np.isfinite(value)}
        run = {row for row in recipe.rows if recipe.printed(row, name) != NO_CELL}
        if known.keys() == run or recipe.columns[name].measure in TO_TARGET:  # half a column tells nothing
            found[recipe.heading(name)] = known
    return found


def _mean(table: Any, cells: list[Any], row: str, column: str, *, seconds: bool) -> float:
    """A cell's mean over seeds, or the processor time that its runs took; nan where it is not stored."""
    if not seconds:
        return float(table.cell(row, column).mean) if column in table.columns else float("nan")
    mine = (table.recipe.name, row, column)
    spent = [one.core_seconds for one in cells if (one.recipe, one.row, one.column) == mine]
    return float(np.mean([one for one in spent if one])) if any(spent) else float("nan")


def _suite_scores(test: Mapping[str, Any], results: Path) -> Scores:
    """Rows of a suite, means over seeds; accuracy in per cent, or `numbers` per client and round."""
    from potluck.benchmark.store import Results

    gathered: dict[str, dict[str, list[float]]] = {}
    for row in Results.read(results, test["suite"]).rows:
        if row.task in test.get("tasks", [row.task]):
            numbers = test.get("value") == "numbers"
            value = row.floats_up + row.floats_down if numbers else 100 * row.accuracy
            gathered.setdefault(row.task, {}).setdefault(row.method, []).append(value)
    return {
        task: {method: float(np.mean(values)) for method, values in methods.items()}
        for task, methods in gathered.items()
    }


def _trial_scores(test: Mapping[str, Any], results: Path) -> Scores:
    """A method's tuning trials on each task: the best validation accuracy at each value of an option, in per cent."""
    from potluck.benchmark.store import Results

    found: Scores = {}
    for trial in Results.read(results, test["trials"]).trials:
        value = json.loads(trial.settings).get(test["option"])
        if trial.method == test["method"] and value is not None and trial.validation is not None:
            there = found.setdefault(trial.task, {})
            there[str(value)] = max(there.get(str(value), 0.0), 100 * trial.validation)
    return found


def _rivals(test: Mapping[str, Any], mine: str, there: Mapping[str, float]) -> list[str]:
    wanted = test.get("of", "others")
    without = (mine, *test.get("without", ()))
    return [name for name in there if (name not in without if wanted == "others" else name in wanted)]


def _ahead(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender is ahead of the best rival everywhere."""
    return _gaps(test["ahead"], test, scores, lambda rivals: max(rivals, key=lambda one: one[1]), 1)


def _behind(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender is behind the worst rival everywhere."""
    return _gaps(test["behind"], test, scores, lambda rivals: min(rivals, key=lambda one: one[1]), -1)


def _gaps(
    mine: str,
    test: Mapping[str, Any],
    scores: Scores,
    choose: Callable[[list[tuple[str, float]]], tuple[str, float]],
    sign: int,
) -> Finding:
    gaps: list[tuple[str, str, float]] = []
    for place, there in scores.items():
        rivals = [(name, there[name]) for name in _rivals(test, mine, there)]
        if mine in there and rivals:
            rival, value = choose(rivals)
            gaps.append((place, rival, there[mine] - value))
    if not gaps:
        return NOTHING
    told = "; ".join(f"{place} {gap:+.1f} ({rival})" for place, rival, gap in gaps)
    verdict = _told([sign * gap for *_, gap in gaps], "suite" if "suite" in test else "recipe")
    return Finding(f"lead of {mine} in points: {told}", verdict)


def _told(gaps: list[float], source: str) -> str:
    """Behind nowhere and ahead in half of the places holds; level in more of them fails where seeds are several."""
    level = LEVEL[source]
    if any(gap < -level for gap in gaps):
        return FAILS
    if 2 * sum(gap > level for gap in gaps) >= len(gaps):
        return HOLDS
    return FAILS if source == "suite" else UNTOLD


def _equals(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether measured cells are the printed ones, within a share of them."""
    from potluck.recipes.recipe import find_recipe

    recipe, told, same = find_recipe(test["recipe"]), [], True
    for name in test["columns"]:
        printed = float(recipe.printed(test["equals"], name).partition("±")[0])
        here = scores.get(recipe.heading(name), {}).get(test["equals"])
        if here is None:
            return NOTHING
        same = same and abs(here - printed) <= test["within"] * printed
        told.append(f"{recipe.heading(name)}: {here:,.2f}, printed {printed:,.2f}")
    return Finding("; ".join(told), HOLDS if same else FAILS)


def _part(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender's number is less than a share of every rival's."""
    told, ratios = [], []
    for place, there in scores.items():
        for rival in _rivals(test, test["part"], there):
            if test["part"] in there and there[rival]:
                ratios.append(there[test["part"]] / there[rival])
                told.append(f"{place} {_share(ratios[-1])} of {rival}'s")
    if not ratios:
        return NOTHING
    return Finding(f"{test['part']}: " + "; ".join(told), HOLDS if max(ratios) < test["below"] else FAILS)


def _share(ratio: float) -> str:
    return f"{ratio:.2%}" if ratio < 0.1 else f"{ratio:.0%}" if ratio < 10 else f"{ratio:.0f} times"


def _spread(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether several contenders are within so many points of each other everywhere."""
    found = {
        place: [there[name] for name in test["spread"] or there if name in there]
        for place, there in scores.items()
    }
    wide = {place: max(values) - min(values) for place, values in found.items() if len(values) > 1}
    if not wide:
        return NOTHING
    told = "; ".join(f"{place}: {points:.1f} points apart" for place, points in wide.items())
    return Finding(told, HOLDS if max(wide.values()) <= test["within"] else FAILS)


def _steady(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender is within so many points of itself everywhere."""
    values = [there[test["steady"]] for there in scores.values() if test["steady"] in there]
    if len(values) < 2:
        return NOTHING
    apart = max(values) - min(values)
    told = f"{test['steady']}: {min(values):.1f} to {max(values):.1f} over {len(values)} columns"
    return Finding(told, HOLDS if apart <= test["within"] else FAILS)


def _reached(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one contender needs less than every rival to reach a target; untold where it is not reached."""
    mine, told, better = test["soonest"], [], []
    for place, there in scores.items():
        rivals = {name: there[name] for name in _rivals(test, mine, there)}
        if mine in there:
            best = min(rivals, key=lambda name: rivals[name], default=None)
            told.append(
                f"{place}: {there[mine]:g}, {best} {rivals[best]:g}"
                if best
                else f"{place}: {there[mine]:g}, no other"
            )
            better.append(best is None or there[mine] <= rivals[best])
    if not told:
        return Finding("the target is not reached", UNTOLD)
    return Finding(f"{mine}: " + "; ".join(told), HOLDS if all(better) else FAILS)


def _columns(test: Mapping[str, Any], scores: Scores) -> Finding:
    """Whether one column is above another for every row."""
    high, low = (scores.get(name, {}) for name in test["above"])
    gaps = {row: high[row] - low[row] for row in test.get("rows", high) if row in high and row in low}
    if not gaps:
        return NOTHING
    told = "; ".join(f"{row} {gap:+.1f}" for row, gap in gaps.items())
    verdict = _told(list(gaps.values()), "recipe")
    return Finding(f"{test['above'][0]} less {test['above'][1]} in points: {told}", verdict)


JUDGES: dict[str, Callable[[Mapping[str, Any], Scores], Finding]] = {
    "ahead": _ahead,
    "behind": _behind,
    "equals": _equals,
    "part": _part,
    "spread": _spread,
    "steady": _steady,
    "soonest": _reached,
    "above": _columns,
}
"""How a test is judged, by the word that names its contender."""
