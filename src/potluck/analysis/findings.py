"""Summarise a comparison in a few sentences, from its numbers and tests only."""

from __future__ import annotations

import math
from collections.abc import Sequence

from potluck.analysis import formatting
from potluck.analysis.comparison import Comparison, ComparisonRow
from potluck.analysis.groups import BASELINE, Group
from potluck.analysis.significance import PairedTest, holm, paired_test

SIGNIFICANCE_LEVEL = 0.05
CLOSE = 0.01
"""Methods within this accuracy of the best are compared by traffic."""
_MAX_NAMED = 4


def findings(comparison: Comparison) -> list[str]:
    """Write two or three sentences: which method is best, whether that may be chance, and the traffic.

    Methods are compared with Standalone where it was run, else with the first. With several methods the p-values
    are corrected by Holm.
    """
    rows = [row for row in comparison.rows if math.isfinite(row.accuracy) and not row.incomparable]
    if not rows:
        return ["No client has been tested yet."]
    if len(rows) == 1:
        return [_single_method(rows[0], comparison.groups[comparison.rows.index(rows[0])])]
    base = _base(comparison, rows)
    tests = _tests(comparison, base)
    other_rows = [row for row in rows if row is not base]
    best = max(rows, key=lambda row: row.accuracy)
    unfinished = [group.label for group in comparison.groups if not any(run.finished for run in group.runs)]
    sentences = [f"Unfinished: {_names(unfinished)}; the results are preliminary."] if unfinished else []
    sentences.append(_first(best, base, rows, tests))
    if len(other_rows) > 1:
        sentences.append(_verdicts(other_rows, base, tests))
    return [*sentences, _cost(best, rows)]


def baseline_row(comparison: Comparison) -> ComparisonRow:
    """Return the method that others are compared with: Standalone where it was run, else the first."""
    return _base(comparison, comparison.rows)


def _base(comparison: Comparison, rows: Sequence[ComparisonRow]) -> ComparisonRow:
    return next((row for row in rows if row.method == BASELINE and not row.incomparable), rows[0])


def _tests(comparison: Comparison, base: ComparisonRow) -> dict[str, PairedTest]:
    """Test every other method against the baseline, with p corrected for their number."""
    runs = {group.label: group.counted_runs for group in comparison.groups}
    tests = {
        row.label: paired_test(runs[row.label], runs[base.label])
        for row in comparison.rows
        if row is not base and not row.incomparable
    }
    corrected = holm({label: test.p for label, test in tests.items() if test.p is not None})
    return {
        label: PairedTest(test.test, corrected.get(label), test.pairs, test.difference, test.note)
        for label, test in tests.items()
    }


def _single_method(row: ComparisonRow, group: Group) -> str:
    run = group.counted_runs[0]
    clients = [client.accuracy for run in group.counted_runs for client in run.client_results]
    reach = (
        f", {formatting.percent(min(clients))} to {formatting.percent(max(clients))} %"
        if len(clients) > 1
        else ""
    )
    seeds = f" over {row.run_count} seeds" if row.run_count > 1 else ""
    verb = "ended at" if run.finished else "is at"
    sent = (
        "nothing sent" if row.sends_nothing else f"{formatting.bytes_with_unit(row.bytes_total)} of traffic"
    )
    return (
        f"{row.label} {verb} {formatting.percent(row.accuracy)} % after {run.num_rounds} rounds{seeds}, "
        f"the mean of {len(clients) // max(row.run_count, 1)} clients{reach}, with {sent}."
    )


def _first(
    best: ComparisonRow, base: ComparisonRow, rows: Sequence[ComparisonRow], tests: dict[str, PairedTest]
) -> str:
    equal = [row for row in rows if formatting.percent(row.accuracy) == formatting.percent(best.accuracy)]
    accuracy = f"{formatting.percent(best.accuracy)} %"
    if len(equal) == len(rows):
        return f"All {len(rows)} methods end at {accuracy}."
    if len(equal) > 1:
        return f"{_names([row.label for row in equal])} end highest, equal at {accuracy}."
    if best is base:
        second = max((row for row in rows if row is not best), key=lambda row: row.accuracy)
        ahead = f"{formatting.percent(best.accuracy - second.accuracy)} points above {second.label}"
        return (
            f"{best.label} ends highest, at {accuracy}, {ahead}{_test_text(tests[second.label], len(tests))}."
        )
    ahead = f"{formatting.percent(best.accuracy - base.accuracy)} points above {base.label}"
    return f"{best.label} ends highest, at {accuracy}, {ahead}{_test_text(tests[best.label], len(tests))}."


def _test_text(test: PairedTest, methods: int) -> str:
    """Write the result of a test as the end of a sentence."""
    if test.p is None:
        return f"; untested, so that may be chance ({test.note})"
    corrected = ", corrected by Holm" if methods > 1 else ""
    figures = f"{test.test}, {test.pairs} pairs, p {_p(test.p)}{corrected}"
    return f" ({figures})" if test.p < SIGNIFICANCE_LEVEL else f", which may be chance ({figures})"


def _verdicts(others: Sequence[ComparisonRow], base: ComparisonRow, tests: dict[str, PairedTest]) -> str:
    """Name the methods significantly above and below the baseline, and count the others."""
    sure = [row for row in others if (p := tests[row.label].p) is not None and p < SIGNIFICANCE_LEVEL]
    ahead = [row for row in sure if row.accuracy > base.accuracy]
    behind = [row for row in sure if row.accuracy < base.accuracy]
    untested = [row for row in others if tests[row.label].p is None]
    if len(untested) == len(others):
        above = sum(row.accuracy > base.accuracy for row in others)
        return f"{above} of {len(others)} methods lie above {base.label}; none could be tested."
    parts = []
    if ahead:
        parts.append(f"significantly above {base.label}: {_gains(ahead, base)}")
    if behind:
        parts.append(f"significantly below {base.label}: {_gains(behind, base)}")
    undecided = len(others) - len(ahead) - len(behind)
    if undecided:
        parts.append(f"not significantly different: {undecided} of {len(others)}")
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def _gains(rows: Sequence[ComparisonRow], base: ComparisonRow) -> str:
    ordered = sorted(rows, key=lambda row: -abs(row.accuracy - base.accuracy))
    named = [f"{row.label} ({_points(row.accuracy - base.accuracy)})" for row in ordered[:_MAX_NAMED]]
    rest = len(ordered) - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest else "")


def _cost(best: ComparisonRow, rows: Sequence[ComparisonRow]) -> str:
    """Compare the traffic of the best method with that of methods of similar accuracy."""
    if best.sends_nothing:
        return f"{best.label} sends nothing."
    close_rows = [row for row in rows if row is not best and best.accuracy - row.accuracy <= CLOSE]
    cheap = min(close_rows, key=lambda row: 0.0 if row.sends_nothing else row.bytes_total, default=best)
    text = f"{best.label} sent {formatting.bytes_with_unit(best.bytes_total)} in total"
    if cheap.bytes_total >= best.bytes_total:
        return f"{text}; no other within {100 * CLOSE:g} point of it sent less."
    gap = f"{formatting.percent(best.accuracy - cheap.accuracy)} points below it"
    if cheap.sends_nothing:
        return f"{text}; {cheap.label}, {gap}, sends nothing."
    return f"{text}; {cheap.label}, {gap}, needs {formatting.bytes_with_unit(cheap.bytes_total)}."


def _points(difference: float) -> str:
    return formatting.signed_percent(difference).replace("-", "−")


def _names(labels: Sequence[str]) -> str:
    shown = list(labels[:_MAX_NAMED])
    if len(labels) == 1:
        return shown[0]
    if len(labels) > _MAX_NAMED:
        return f"{', '.join(shown)} and {len(labels) - _MAX_NAMED} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _p(value: float) -> str:
    shown = formatting.probability(value)
    return shown if shown.startswith("<") else f"= {shown}"
