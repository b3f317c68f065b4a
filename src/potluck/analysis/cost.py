"""Total traffic, and the cost of reaching a target accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.analysis import formatting
from potluck.analysis.groups import Group, group_runs
from potluck.core.errors import PotluckError, unknown
from potluck.runs.run import Run, as_number

if TYPE_CHECKING:
    from rich.table import Table


FLOAT_BYTES = 4


@dataclass(frozen=True)
class TrafficRow:
    """Traffic and time of one method, means over its seeds. Up is from client to server."""

    label: str
    floats_up: float  # per client and round
    floats_down: float
    bytes_up: float  # per client and round, as encoded
    bytes_down: float
    total_bytes_up: float
    total_bytes_down: float
    seconds_per_round: float
    paper_up: float | None  # numbers per client and round
    paper_down: float | None
    paper_note: str

    @property
    def paper_bytes(self) -> float:
        """Return bytes of both directions per client and round as the paper counts them; nan where not recorded."""
        if self.paper_up is None or self.paper_down is None:
            return math.nan
        return FLOAT_BYTES * (self.paper_up + self.paper_down)


def traffic_rows(runs: Iterable[Run]) -> tuple[TrafficRow, ...]:
    """Return the traffic of runs, one row per method and setting."""
    return tuple(traffic_row(group) for group in group_runs(runs))


def traffic_row(group: Group) -> TrafficRow:
    """Return the traffic of one group of runs."""
    runs = group.counted_runs
    paper: dict[str, Any] = next(
        (run.summary["paper_accounting"] for run in runs if run.summary.get("paper_accounting")), {}
    )
    return TrafficRow(
        label=group.label,
        floats_up=mean_of_finite([run.per_client_round("floats_up") for run in runs]),
        floats_down=mean_of_finite([run.per_client_round("floats_down") for run in runs]),
        bytes_up=mean_of_finite([run.per_client_round("bytes_up") for run in runs]),
        bytes_down=mean_of_finite([run.per_client_round("bytes_down") for run in runs]),
        total_bytes_up=mean_of_finite([run.total("bytes_up") for run in runs]),
        total_bytes_down=mean_of_finite([run.total("bytes_down") for run in runs]),
        seconds_per_round=mean_of_finite([run.total("seconds") / max(run.num_rounds, 1) for run in runs]),
        paper_up=paper.get("up"),
        paper_down=paper.get("down"),
        paper_note=str(paper.get("note", "")),
    )


def traffic_cells(rows: Sequence[TrafficRow]) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of the traffic table; the paper's columns only where a run has them."""
    with_paper = any(row.paper_up is not None for row in rows)
    headings = ["method", "floats up", "floats down", "KiB up", "KiB down", "total MiB up", "total MiB down"]
    headings += ["s per round"] + (["paper's KiB", "paper's count"] if with_paper else [])
    cells = [
        [
            row.label,
            formatting.count(row.floats_up),
            formatting.count(row.floats_down),
            formatting.kibibytes(row.bytes_up),
            formatting.kibibytes(row.bytes_down),
            formatting.mebibytes(row.total_bytes_up),
            formatting.mebibytes(row.total_bytes_down),
            formatting.seconds(row.seconds_per_round),
            *(
                [formatting.kibibytes(row.paper_bytes), row.paper_note or formatting.MISSING]
                if with_paper
                else []
            ),
        ]
        for row in rows
    ]
    return headings, cells


def traffic_table(rows: Sequence[TrafficRow]) -> Table:
    """Make the traffic table for the terminal; floats and KiB are per client and round."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    headings, cells = traffic_cells(rows)
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for position, heading in enumerate(headings):
        is_text = position == 0 or heading == "paper's count"
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))
    return table


COSTS = ("rounds", "bytes", "floats", "seconds", "virtual_seconds", "flops")


@dataclass(frozen=True)
class TargetCost:
    """Cost until the first evaluation that reached the target; nan where never reached or not recorded.

    Traffic is of all clients and both directions; `flops` is of all clients' local training.
    """

    target: float
    rounds: float = math.nan
    bytes: float = math.nan
    floats: float = math.nan
    seconds: float = math.nan
    virtual_seconds: float = math.nan
    flops: float = math.nan

    @property
    def reached(self) -> bool:
        """Return whether the run reached the target."""
        return math.isfinite(self.rounds)

    def amount(self, cost: str) -> float:
        """Return the cost named `cost` (one of `COSTS`)."""
        if cost not in COSTS:
            raise unknown("cost", cost, COSTS)
        return float(getattr(self, cost))


def check_target(target: float) -> float:
    """Return `target` if it is a fraction in (0, 1]."""
    if not 0 < target <= 1:
        raise PotluckError(f"target {target:g} is not an accuracy between 0 and 1: write 0.8 for 80 %.")
    return target


def cost_to_target(run: Run, target: float) -> TargetCost:
    """Return the cost until the accuracy first reached `target`, from the raw (unsmoothed) curve."""
    check_target(target)
    accuracy = np.asarray([as_number(record.get("accuracy")) for record in run.rounds])
    reached = np.flatnonzero(accuracy >= target)
    if not len(reached):
        return TargetCost(target)
    first = int(reached[0])
    flops = run.summary.get("flops_per_client_round")
    return TargetCost(
        target,
        **{
            axis: float(run.axis(axis)[first])
            for axis in ("rounds", "bytes", "floats", "seconds", "virtual_seconds")
        },
        flops=math.nan if flops is None else float(flops) * float(run.jobs[first]),
    )


def mean_target_cost(runs: Sequence[Run], target: float) -> tuple[int, TargetCost]:
    """Return how many runs reached the target, and the mean of their costs."""
    costs = [cost for cost in (cost_to_target(run, target) for run in runs) if cost.reached]
    means = {name: mean_of_finite([cost.amount(name) for cost in costs]) for name in COSTS}
    return len(costs), TargetCost(target, **means)


def mean_of_finite(values: Sequence[float]) -> float:
    """Return the mean of the finite values; nan when there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan


def speed_up(cost: TargetCost, reference: TargetCost, by: str = "rounds") -> float:
    """Return the cost of `reference` divided by `cost`; nan unless both reached the target."""
    spent = cost.amount(by)
    return reference.amount(by) / spent if spent else math.nan
