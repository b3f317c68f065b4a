"""Give a claim its verdict: what the numbers say, as far as the size of the experiment lets them say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from generate.evidence import CONTRADICTED, NO_ROWS, NOT_RUN, RESULTS, UNDECIDED, Finding, compare
from generate.scores import CELL_FILES, needed_rows, read_table

COUNTS = ("numbers", "samples")
"""Values of a suite that are counted, not measured: they follow from the method at any size."""
LEAST_SHARE = 0.2
"""Of the paper's rounds: with fewer, what a run ends with is not judged. A test may say otherwise."""


@dataclass(frozen=True)
class Conditions:
    """What the rows of the full scale behind a test are: rounds, seeds, rows missing, mechanisms."""

    cells: int
    rounds: int
    paper_rounds: int
    missing: tuple[str, ...]
    idle: tuple[str, ...]
    mechanisms: tuple[str, ...]

    @property
    def share(self) -> float:
        """The least share of the paper's rounds."""
        return self.rounds / self.paper_rounds if self.paper_rounds else 1.0

    def objections(self, verdict: str, least: float) -> list[str]:
        """Why these rows do not carry a verdict; nothing where they do."""
        objections = []
        if self.share < least:
            objections.append(f"{self.rounds} of {self.paper_rounds} rounds")
        if self.idle:
            objections.append(f"the mechanism did nothing ({', '.join(self.idle)})")
        if self.missing and verdict != CONTRADICTED:
            objections.append(f"not run: {', '.join(self.missing)}")
        return objections


def judge_test(test: Mapping[str, Any], results: Path = RESULTS) -> Finding:
    """Judge a claim's test: by rows of the full scale where there are some, else by those of the small scale.

    Rows of the small scale and of suites decide nothing but counts, which do not depend on the size of an experiment.
    """
    if "recipe" in test:
        full = judge_at_full_size(test, results)
        if full.verdict != NOT_RUN:
            return full
    finding = compare(test, results)
    if finding.verdict == NOT_RUN or (
        is_counted(test) and ("recipe" in test or finding.verdict != CONTRADICTED)
    ):
        return finding  # the networks of a suite are not the paper's, and contradict nothing
    where = (
        "at the small scale" if "recipe" in test else f"in the suite {test.get('suite') or test['trials']}"
    )
    return replace(finding, verdict=UNDECIDED, figure=f"{where}, {finding.figure}")


def judge_at_full_size(test: Mapping[str, Any], results: Path) -> Finding:
    """Judge by rows of the full scale; undecided where rounds, rows or an idle mechanism do not let them decide.

    A rival that is ahead contradicts a lead over all others, whether or not the others were run.
    """
    if is_counted(test):
        return compare({**test, "scale": "full"}, results)
    conditions = read_conditions(test, results)
    finding = compare({**test, "scale": "full", "partial": True}, results)
    if finding.verdict == NOT_RUN or not conditions.cells:
        return NO_ROWS
    objections = conditions.objections(finding.verdict, test.get("least_share", LEAST_SHARE))
    details = [finding.details or finding.figure, f"{conditions.rounds} of {conditions.paper_rounds} rounds"]
    details += [f"mechanism: {each}" for each in conditions.mechanisms]
    details += [f"undecided: {'; '.join(objections)}"] if objections else []
    return replace(
        finding,
        figure=f"at full size, {finding.figure}" + (f" ({'; '.join(objections[:1])})" if objections else ""),
        verdict=UNDECIDED if objections else finding.verdict,
        details="; ".join(details),
    )


def read_conditions(test: Mapping[str, Any], results: Path) -> Conditions:
    """What is known of the stored rows of the full scale that a test speaks of."""
    from potluck.recipes.measures import TO_TARGET

    table, cells = read_table(results / CELL_FILES["full"], test["recipe"])
    recipe = table.recipe
    columns = test.get("columns") or [n for n in recipe.columns if recipe.columns[n].measure == "best"]
    wanted = {(row, name) for name in columns for row in needed_rows(test, recipe, name)}
    stored = [cell for cell in cells if (cell.row, cell.column) in wanted]
    long = [cell for cell in stored if recipe.columns[cell.column].measure not in TO_TARGET]
    shortest = min(long, key=lambda cell: (cell.rounds or 0) / (cell.paper_rounds or 1), default=None)
    places = {cell.column for cell in stored}
    missing = {row for row, name in wanted if name in places} - {cell.row for cell in stored}
    own = [
        (key, acted)
        for key, acted in table.activity.items()
        if key[0] in recipe.own_rows and key[0] in {row for row, _ in wanted}
    ]
    return Conditions(
        cells=len(stored),
        rounds=(shortest.rounds or 0) if shortest else 1,
        paper_rounds=(shortest.paper_rounds or 0) if shortest else 1,
        missing=tuple(row for row in recipe.rows if row in missing),
        idle=_names(key for key, acted in own if not acted.acts),
        mechanisms=tuple(dict.fromkeys(f"{key[0]} {acted}" for key, acted in own)),
    )


def _names(keys: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row for row, *_ in keys))


def is_counted(test: Mapping[str, Any]) -> bool:
    """Whether a test compares only counts, of numbers sent or samples trained on, which any size gives."""
    if "recipe" not in test:
        return test.get("value") in COUNTS
    from potluck.recipes.measures import COUNTED
    from potluck.recipes.recipe import find_recipe

    columns = find_recipe(test["recipe"]).columns
    names: Sequence[str] = test.get("columns") or []
    return bool(names) and "value" not in test and all(columns[name].measure in COUNTED for name in names)
