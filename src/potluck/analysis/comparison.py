"""Methods side by side: accuracy, fairness, cost to a target, traffic, a paired test against the first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from potluck.analysis.fairness import fairness
from potluck.analysis.groups import Group, group_runs
from potluck.analysis.significance import PairedTest, paired_test, same_clients
from potluck.analysis.targets import TargetCost, check_target, cost_to_target
from potluck.analysis.text import count
from potluck.core.errors import unknown
from potluck.runs.run import Run

UNEQUAL = 1.1
"""A method whose jobs are longer than another's by more than this factor does more work."""


@dataclass(frozen=True)
class Row:
    """One method (and setting) of a comparison. Accuracies are fractions, means over its seeds."""

    label: str
    method: str
    seeds: tuple[int, ...]
    counted: int  # how many of the seeds' runs the numbers are of
    accuracy: float  # all clients after the last round
    accuracy_std: float  # over seeds when there are several, else over clients
    spread_over: str  # "seeds" or "clients"
    best: float  # test accuracy of the round that `selected_by` names
    best_round: float
    last: float
    worst: float  # mean of the worst tenth of the clients
    client_std: float
    client_gap: float
    reached: int  # how many seeds reached the target
    to_target: TargetCost | None  # mean over those seeds
    speed_up: float  # rounds of the first method ÷ rounds of this one
    floats_up: float  # per client and round
    floats_down: float
    bytes_total: float
    seconds: float
    test: PairedTest | None  # against the first method; None for the first itself
    selected_by: str = "test"  # what the best round is best on
    macro_f1: float = math.nan  # means over clients after the last round, like accuracy
    calibration_error: float = math.nan
    loss: float = math.nan
    validation: float = math.nan  # accuracy of the best round on validation samples
    newcomers: float = math.nan  # accuracy of clients that joined at the end
    newcomers_gain: float = math.nan  # less that of as much training alone
    apart: str = ""  # why the line cannot be held against the first one; empty where it can

    @property
    def shown(self) -> str:
        """The label in a table, marked where the line stands apart."""
        return f"{self.label} †" if self.apart else self.label

    @property
    def silent(self) -> bool:
        """Whether nothing is ever sent: the few bytes then counted are empty envelopes."""
        return self.floats_up + self.floats_down == 0


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, the target they were held to, and what a fair reader should know."""

    rows: tuple[Row, ...]
    groups: tuple[Group, ...]
    target: float | None
    notes: tuple[str, ...]
    columns: tuple[str, ...] = ()
    """The names of the columns to show, in this order; none: the usual ones."""


def compare(
    runs: Iterable[Run],
    target: float | None = None,
    reference: str | None = None,
    columns: Sequence[str] = (),
) -> Comparison:
    """Compare runs grouped by method over seeds; `reference` names the method that others are tested against.

    The reference comes first in the result; without one it is the method given first.
    """
    groups = _reference_first(group_runs(runs), reference)
    if target is not None:
        check_target(target)
    first = groups[0]
    groups = sorted(groups, key=lambda group: bool(why_apart(group, first)))  # others keep their order
    rows = [_row(group, first, target) for group in groups]
    return Comparison(tuple(rows), tuple(groups), target, tuple(_notes(groups, rows)), tuple(columns))


def why_apart(group: Group, first: Group) -> str:
    """Why a line cannot be held against the first one: it is of something else than its method and settings."""
    mine, theirs = group.runs[0], first.runs[0]
    if mine.dataset != theirs.dataset:
        return f"they are of other data ({mine.dataset})"
    if mine.protocol and theirs.protocol and mine.protocol != theirs.protocol:
        return f"they are evaluated by another protocol ({mine.protocol})"
    partner = {run.seed: run for run in first.runs}
    pairs = [(run, partner[run.seed]) for run in group.runs if run.seed in partner]
    known = [(a, b) for a, b in pairs if a.class_counts is not None and b.class_counts is not None]
    if any(not same_clients(a, b) for a, b in known):
        return "their clients hold other samples"
    if any(_architectures(a) != _architectures(b) for a, b in pairs):
        return "their clients have other models"
    return ""


def _architectures(run: Run) -> list[str]:
    stated = run.summary.get("client_architectures")
    return list(stated) if stated else [client.architecture for client in run.client_results]


def _reference_first(groups: list[Group], reference: str | None) -> list[Group]:
    if reference is None:
        return groups
    chosen = [group for group in groups if reference in (group.label, group.method)]
    if not chosen:
        raise unknown("reference method", reference, [group.label for group in groups])
    return [chosen[0], *(group for group in groups if group is not chosen[0])]


def _row(group: Group, first: Group, target: float | None) -> Row:
    runs = group.counted
    spread = [fairness(run.client_accuracy.values()) for run in runs]
    several = len(runs) > 1
    finals = [run.final_accuracy for run in runs]
    reached, cost = _mean_cost(runs, target)
    reference_cost = _mean_cost(first.counted, target)[1]
    apart = why_apart(group, first)
    return Row(
        label=group.label,
        method=group.method,
        seeds=group.seeds,
        counted=len(runs),
        accuracy=_mean(finals),
        accuracy_std=float(np.std(finals, ddof=1)) if several else spread[0].std,
        spread_over="seeds" if several else "clients",
        best=_mean([run.best_accuracy for run in runs]),
        best_round=_mean([math.nan if run.best_round is None else run.best_round for run in runs]),
        last=_mean([run.last_accuracy for run in runs]),
        worst=_mean([each.worst for each in spread]),
        client_std=_mean([each.std for each in spread]),
        client_gap=_mean([each.gap for each in spread]),
        reached=reached,
        to_target=cost,
        speed_up=reference_cost.rounds / cost.rounds if cost and reference_cost and not apart else math.nan,
        floats_up=_mean([run.per_client_round("floats_up") for run in runs]),
        floats_down=_mean([run.per_client_round("floats_down") for run in runs]),
        bytes_total=_mean([run.total("bytes_up") + run.total("bytes_down") for run in runs]),
        seconds=_mean([run.total("seconds") for run in runs]),
        test=None if group is first else _test(group, first, apart),
        apart=apart,
        selected_by=runs[0].selected_by,
        macro_f1=_mean([run.stated("final_macro_f1") for run in runs]),
        calibration_error=_mean([run.stated("final_calibration_error") for run in runs]),
        loss=_mean([run.stated("final_loss") for run in runs]),
        validation=_mean([run.stated("best_accuracy_validation") for run in runs]),
        newcomers=_mean([run.newcomers("accuracy") for run in runs]),
        newcomers_gain=_mean([run.newcomers("gain") for run in runs]),
    )


def _test(group: Group, first: Group, apart: str) -> PairedTest:
    """A test where there is something to test: two numbers about different things differ for other reasons."""
    return PairedTest("none", None, 0, 0.0, apart) if apart else paired_test(group.counted, first.counted)


def _mean_cost(runs: Sequence[Run], target: float | None) -> tuple[int, TargetCost | None]:
    """How many runs reached the target, and their mean cost of it."""
    if target is None:
        return 0, None
    costs = [cost for cost in (cost_to_target(run, target) for run in runs) if cost.reached]

    def mean(cost_of: Callable[[TargetCost], float]) -> float:
        return _mean([cost_of(cost) for cost in costs])

    return len(costs), TargetCost(
        target,
        rounds=mean(lambda cost: cost.rounds),
        bytes=mean(lambda cost: cost.bytes),
        floats=mean(lambda cost: cost.floats),
        seconds=mean(lambda cost: cost.seconds),
        virtual_seconds=mean(lambda cost: cost.virtual_seconds),
        flops=mean(lambda cost: cost.flops),
    )


def _notes(groups: list[Group], rows: Sequence[Row]) -> list[str]:
    """What makes the comparison less than fair, in sentences."""
    notes = []
    for reason in dict.fromkeys(row.apart for row in rows if row.apart):
        labels = ", ".join(row.label for row in rows if row.apart == reason)
        notes.append(f"† Set apart from {rows[0].label}, neither tested nor best, since {reason}: {labels}.")
    rounds = {run.num_rounds for group in groups for run in group.counted}
    if len(rounds) > 1:
        notes.append(f"The runs did different numbers of rounds: {', '.join(map(str, sorted(rounds)))}.")
    seeds = {group.seeds for group in groups}
    if len(seeds) > 1:
        notes.append("The methods were not run with the same seeds.")
    if work := _unequal_work(groups):
        notes.append(work)
    if len({group.runs[0].selected_by for group in groups}) > 1:
        notes.append("The runs do not pick their best round alike, so the best ones do not compare.")
    unfinished = [run.name for group in groups for run in group.runs if not run.finished]
    if unfinished:
        notes.append(f"Unfinished: {', '.join(unfinished)}.")
    return notes


def _unequal_work(groups: list[Group]) -> str:
    """A sentence where a client's job is more training under one method than under another; else nothing."""
    work = {
        group.label: _mean([run.total("trained_samples") / max(1.0, run.jobs[-1]) for run in group.counted])
        for group in groups
        if all(len(run.jobs) and run.has("trained_samples") for run in group.counted)
    }
    least, most = (pick(work, key=work.__getitem__, default="") for pick in (min, max))
    if not work or work[most] <= UNEQUAL * work[least]:
        return ""
    return (
        f"The methods did unequal work: a client's job trains on {count(work[least])} samples with {least} "
        f"and on {count(work[most])} with {most}, repetitions counted."
    )


def _mean(values: Sequence[float]) -> float:
    """The mean of the known values; nan when there is none."""
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan
