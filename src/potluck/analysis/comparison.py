"""Compare methods: accuracy, fairness, cost to a target, traffic, and a paired test against the first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potluck.analysis.clients import fairness
from potluck.analysis.cost import TargetCost, check_target, mean_of_finite, mean_target_cost
from potluck.analysis.failures import outcome_notes
from potluck.analysis.formatting import count
from potluck.analysis.groups import Group, arrange_groups, group_runs, reference_group
from potluck.analysis.significance import PairedTest, paired_test, same_clients
from potluck.runs.run import Run

UNEQUAL_WORK = 1.1
"""Ratio of trained samples per job above which two methods count as doing unequal work."""


@dataclass(frozen=True)
class ComparisonRow:
    """Results of one method (and setting) in a comparison. Accuracies are fractions, means over its seeds."""

    label: str
    method: str
    seeds: tuple[int, ...]
    run_count: int  # runs that the numbers are means of
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
    newcomers_gain: float = math.nan  # minus the accuracy of the same amount of local training
    flops: float = math.nan  # floating-point operations of a client's job, without tests
    incomparable: str = ""  # why the row cannot be compared with the first; empty where it can

    @property
    def display_label(self) -> str:
        """Return the label for a table, marked where the row is not comparable."""
        return f"{self.label} †" if self.incomparable else self.label

    @property
    def sends_nothing(self) -> bool:
        """Return whether no numbers are sent; the bytes that are counted then are message headers."""
        return self.floats_up + self.floats_down == 0


@dataclass(frozen=True)
class Comparison:
    """Rows of a comparison with the target, and notes on what limits its fairness."""

    rows: tuple[ComparisonRow, ...]
    groups: tuple[Group, ...]
    target: float | None
    notes: tuple[str, ...]
    columns: tuple[str, ...] = ()
    """Names of the columns to show, in this order; empty for the default columns."""


def compare(
    runs: Iterable[Run],
    target: float | None = None,
    reference: str | None = None,
    columns: Sequence[str] = (),
    *,
    order: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare runs grouped by method over seeds; `reference` names the method that others are tested against.

    The reference comes first in the result; by default it is Standalone, or the first method where that was not run.
    `order` lists the methods that follow, `names` replaces labels (see `arrange_groups`).
    """
    groups = _reference_first(arrange_groups(group_runs(runs), order, names), reference)
    if target is not None:
        check_target(target)
    first = groups[0]
    groups = sorted(
        groups, key=lambda group: bool(incomparable_reason(group, first))
    )  # a stable sort: others keep their order
    rows = [_row(group, first, target) for group in groups]
    return Comparison(tuple(rows), tuple(groups), target, tuple(_notes(groups, rows)), tuple(columns))


def incomparable_reason(group: Group, first: Group) -> str:
    """Return why a group cannot be compared with the first: other data, protocol, samples or models."""
    run, reference = group.runs[0], first.runs[0]
    if run.dataset != reference.dataset:
        return f"they use other data ({run.dataset})"
    if run.protocol and reference.protocol and run.protocol != reference.protocol:
        return f"they are evaluated by another protocol ({run.protocol})"
    partner = {run.seed: run for run in first.runs}
    pairs = [(run, partner[run.seed]) for run in group.runs if run.seed in partner]
    recorded = [(a, b) for a, b in pairs if a.class_counts is not None and b.class_counts is not None]
    if any(not same_clients(a, b) for a, b in recorded):
        return "their clients hold other samples"
    if any(_architectures(a) != _architectures(b) for a, b in pairs):
        return "their clients have other models"
    return ""


def _architectures(run: Run) -> list[str]:
    summary_number = run.summary.get("client_architectures")
    return list(summary_number) if summary_number else [client.architecture for client in run.client_results]


def _reference_first(groups: list[Group], reference: str | None) -> list[Group]:
    chosen = reference_group(groups, reference)
    return [chosen, *(group for group in groups if group is not chosen)]


def _row(group: Group, first: Group, target: float | None) -> ComparisonRow:
    runs = group.counted_runs
    spread = [fairness(run.client_accuracy.values()) for run in runs]
    several = len(runs) > 1
    finals = [run.final_accuracy for run in runs]
    reached, cost = (0, None) if target is None else mean_target_cost(runs, target)
    reference_cost = None if target is None else mean_target_cost(first.counted_runs, target)[1]
    incomparable = incomparable_reason(group, first)
    return ComparisonRow(
        label=group.label,
        method=group.method,
        seeds=group.seeds,
        run_count=len(runs),
        accuracy=mean_of_finite(finals),
        accuracy_std=float(np.std(finals, ddof=1)) if several else spread[0].std,
        spread_over="seeds" if several else "clients",
        best=mean_of_finite([run.best_accuracy for run in runs]),
        best_round=mean_of_finite([math.nan if run.best_round is None else run.best_round for run in runs]),
        last=mean_of_finite([run.last_accuracy for run in runs]),
        worst=mean_of_finite([each.worst for each in spread]),
        client_std=mean_of_finite([each.std for each in spread]),
        client_gap=mean_of_finite([each.gap for each in spread]),
        reached=reached,
        to_target=cost,
        speed_up=reference_cost.rounds / cost.rounds
        if cost and reference_cost and not incomparable
        else math.nan,
        floats_up=mean_of_finite([run.per_client_round("floats_up") for run in runs]),
        floats_down=mean_of_finite([run.per_client_round("floats_down") for run in runs]),
        bytes_total=mean_of_finite([run.total("bytes_up") + run.total("bytes_down") for run in runs]),
        seconds=mean_of_finite([run.total("seconds") for run in runs]),
        test=None if group is first else _test(group, first, incomparable),
        incomparable=incomparable,
        selected_by=runs[0].selected_by,
        macro_f1=mean_of_finite([run.summary_number("final_macro_f1") for run in runs]),
        calibration_error=mean_of_finite([run.summary_number("final_calibration_error") for run in runs]),
        loss=mean_of_finite([run.summary_number("final_loss") for run in runs]),
        validation=mean_of_finite([run.summary_number("best_accuracy_validation") for run in runs]),
        newcomers=mean_of_finite([run.newcomers("accuracy") for run in runs]),
        newcomers_gain=mean_of_finite([run.newcomers("gain") for run in runs]),
        flops=mean_of_finite([run.summary_number("flops_per_client_round") for run in runs]),
    )


def _test(group: Group, first: Group, incomparable: str) -> PairedTest:
    """Test a group against the first, unless the two are not comparable."""
    return (
        PairedTest("none", None, 0, 0.0, incomparable)
        if incomparable
        else paired_test(group.counted_runs, first.counted_runs)
    )


def _notes(groups: list[Group], rows: Sequence[ComparisonRow]) -> list[str]:
    """Return sentences on what limits the fairness of the comparison, and on what went wrong in it."""
    notes = []
    for reason in dict.fromkeys(row.incomparable for row in rows if row.incomparable):
        labels = ", ".join(row.label for row in rows if row.incomparable == reason)
        notes.append(
            f"† Not comparable with {rows[0].label}, neither tested nor marked best, since {reason}: {labels}."
        )
    rounds = {run.num_rounds for group in groups for run in group.counted_runs}
    if len(rounds) > 1:
        notes.append(f"The runs did different numbers of rounds: {', '.join(map(str, sorted(rounds)))}.")
    seeds = {group.seeds for group in groups}
    if len(seeds) > 1:
        notes.append("The methods were not run with the same seeds.")
    if work := _unequal_work(groups):
        notes.append(work)
    if len({group.runs[0].selected_by for group in groups}) > 1:
        notes.append(
            "The runs select their best round by different rules, so best accuracies are not comparable."
        )
    unfinished = [run.name for group in groups for run in group.runs if not run.finished]
    if unfinished:
        notes.append(f"Unfinished: {', '.join(unfinished)}.")
    return [*notes, *(note for group in groups for note in outcome_notes(group.label, group.runs))]


def _unequal_work(groups: list[Group]) -> str:
    """Return a sentence where a client's job trains on more samples under one method than under another."""
    work = {
        group.label: mean_of_finite([_samples_per_job(run) for run in group.counted_runs])
        for group in groups
        if all(len(run.jobs) and run.has("trained_samples") for run in group.counted_runs)
    }
    least, most = (pick(work, key=work.__getitem__, default="") for pick in (min, max))
    if not work or work[most] <= UNEQUAL_WORK * work[least]:
        return ""
    return (
        f"The methods did unequal work: a client's job trains on {count(work[least])} samples with {least} "
        f"and on {count(work[most])} with {most}, repetitions counted."
    )


def _samples_per_job(run: Run) -> float:
    return run.total("trained_samples") / max(1.0, float(run.jobs[-1]))
