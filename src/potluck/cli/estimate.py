"""`potluck reproduce --estimate`: what the runs of a table will cost on this machine, and in which order they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from potluck.analysis.formatting import duration
from potluck.core.errors import PotluckError
from potluck.recipes.cost import Cost, Estimator
from potluck.recipes.reproduce import Key, Reproduction, run_path
from potluck.runs.folder import ROUNDS, SUMMARY, read_lines

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Expected:
    """A run to come: rounds done and in all, and what is left of its cost; None where it cannot be run."""

    key: Key
    done: int
    rounds: int
    cost: Cost | None
    reason: str = ""

    @property
    def share_left(self) -> float:
        """The part of the run that is still to be done."""
        return 1 - self.done / self.rounds

    @property
    def core_seconds(self) -> float:
        """Processor time that the rest will take."""
        return 0.0 if self.cost is None else self.share_left * self.cost.core_seconds

    @property
    def seconds(self) -> float:
        """Wall time that the rest will take on an idle machine."""
        return 0.0 if self.cost is None else self.share_left * self.cost.seconds


class Totals(NamedTuple):
    """Runs that are still to be done, and what they will take with nothing else running."""

    runs: int
    core_hours: float
    hours: float


def show_estimate(table: Reproduction, out: Path | None, budget: float | None, *, quiet: bool) -> Totals:
    """Measure what is still to be done and print it as a table, in the order of the runs; return the totals."""
    from rich.console import Console

    console, runs = Console(), list(_expected(table, out, quiet=quiet))
    console.print(_rich(runs))
    remaining = [run for run in runs if run.share_left and run.cost is not None]
    seconds, core_seconds = sum(run.seconds for run in remaining), sum(run.core_seconds for run in remaining)
    lines = [
        f"{len(remaining)} of {len(runs)} runs are to be done: {core_seconds / 3600:.2f} core-hours, about "
        f"{duration(seconds)} on this machine if nothing else runs."
    ]
    if budget is not None:
        lines.append(f"A budget of {duration(budget)} covers {_covered(remaining, budget)} of them.")
    lines += [f"{', '.join(map(str, run.key))}: {run.reason}" for run in runs if run.reason]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    return Totals(len(remaining), core_seconds / 3600, seconds / 3600)


def _expected(table: Reproduction, out: Path | None, *, quiet: bool) -> Iterator[Expected]:
    estimator, costs = Estimator(), dict[tuple[str, str], Cost | str]()
    for number, (key, experiment) in enumerate(table.work.items(), 1):
        row, setting, _ = key
        rounds = experiment.schedule.rounds
        rounds_done = rounds if key in table.values else _rounds_done(out, key, rounds)
        if rounds_done < rounds and (row, setting) not in costs:
            if not quiet:
                print(f"[{number}/{len(table.work)}] measuring {row}, {setting}", file=sys.stderr, flush=True)
            try:
                costs[row, setting] = estimator.cost(experiment)
            except PotluckError as error:
                costs[row, setting] = str(error)
        cost = costs.get((row, setting))
        reason = cost if isinstance(cost, str) and rounds_done < rounds else ""
        yield Expected(key, rounds_done, rounds, cost if isinstance(cost, Cost) else None, reason)


def _rounds_done(out: Path | None, key: Key, rounds: int) -> int:
    """Return how many rounds a run has on disk; all but one at the most where it has not ended."""
    if out is None:
        return 0
    path = run_path(out, key)
    rounds_done = max((int(line["round"]) for line in read_lines(path / ROUNDS)), default=0)
    return min(rounds_done, rounds if (path / SUMMARY).exists() else rounds - 1)


def _covered(runs: list[Expected], budget: float) -> int:
    """Return how many runs, in their order, end within the budget."""
    spent = 0.0
    for number, run in enumerate(runs):
        spent += run.seconds
        if spent > budget:
            return number
    return len(runs)


def _rich(runs: list[Expected]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("", "row", "setting"):
        table.add_column(heading, no_wrap=True)
    for heading in ("seed", "rounds", "core-hours", "hours", "ends at"):
        table.add_column(heading, justify="right", no_wrap=True)
    spent = 0.0
    for number, run in enumerate(runs, 1):
        row, setting, seed = run.key
        spent += run.seconds
        cells = ["done", "", ""]
        if run.share_left:
            cells = [f"{seconds / 3600:.2f}" for seconds in (run.core_seconds, run.seconds, spent)]
        if run.reason:
            cells = ["cannot run", "", ""]
        table.add_row(str(number), row, setting, str(seed), f"{run.done}/{run.rounds}", *cells)
    return table
