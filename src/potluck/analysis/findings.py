"""What a comparison shows, in a few sentences made from its numbers and tests, and never more than these carry."""

from __future__ import annotations

import math
from collections.abc import Sequence

from potluck.analysis import text
from potluck.analysis.comparison import Comparison, Row
from potluck.analysis.groups import Group
from potluck.analysis.significance import PairedTest, holm, paired_test

LEVEL = 0.05
ALONE = "standalone"
NEAR = 0.01
"""Methods this close to the best, as a share of 1, are asked whether they cost less."""
_NAMED = 4


def findings(comparison: Comparison) -> list[str]:
    """Two or three sentences: who is ahead of whom, whether that can be chance, at what traffic, and who loses.

    The methods are held against Standalone where it was run, else against the first. With several methods the
    tests' p-values are corrected by Holm, since among many one is always lucky.
    """
    rows = [row for row in comparison.rows if math.isfinite(row.accuracy) and not row.apart]
    if not rows:
        return ["No client has been tested yet."]
    if len(rows) == 1:
        return [_of_one(rows[0], comparison.groups[comparison.rows.index(rows[0])])]
    base = _base(comparison, rows)
    tests = _tests(comparison, base)
    others = [row for row in rows if row is not base]
    best = max(rows, key=lambda row: row.accuracy)
    going = [group.label for group in comparison.groups if not any(run.finished for run in group.runs)]
    said = [f"Not ended yet: {_names(going)}; this is where the methods stand."] if going else []
    said.append(_first(best, base, rows, tests))
    if len(others) > 1:
        said.append(_verdicts(others, base, tests))
    cost = _cost(best, rows)
    return [*said, cost] if cost else said


def base_row(comparison: Comparison) -> Row:
    """The method that sentences and charts hold the others against: Standalone where there is one, else the first."""
    return _base(comparison, comparison.rows)


def _base(comparison: Comparison, rows: Sequence[Row]) -> Row:
    return next((row for row in rows if row.method == ALONE and not row.apart), rows[0])


def _tests(comparison: Comparison, base: Row) -> dict[str, PairedTest]:
    """Every other method's test against the base, with p corrected for their number."""
    runs = {group.label: group.counted for group in comparison.groups}
    found = {
        row.label: paired_test(runs[row.label], runs[base.label])
        for row in comparison.rows
        if row is not base and not row.apart
    }
    corrected = holm({label: test.p for label, test in found.items() if test.p is not None})
    return {
        label: PairedTest(test.test, corrected.get(label), test.pairs, test.difference, test.note)
        for label, test in found.items()
    }


def _of_one(row: Row, group: Group) -> str:
    run = group.counted[0]
    clients = [client.accuracy for run in group.counted for client in run.client_results]
    reach = f", {text.percent(min(clients))} to {text.percent(max(clients))} %" if len(clients) > 1 else ""
    seeds = f" over {row.counted} seeds" if row.counted > 1 else ""
    done = "ended at" if run.finished else "stands at"
    sent = "nothing sent" if row.silent else f"{text.bytes_with_unit(row.bytes_total)} of traffic"
    return (
        f"{row.label} {done} {text.percent(row.accuracy)} % after {run.num_rounds} rounds{seeds}, "
        f"the mean of {len(clients) // max(row.counted, 1)} clients{reach}, with {sent}."
    )


def _first(best: Row, base: Row, rows: Sequence[Row], tests: dict[str, PairedTest]) -> str:
    equal = [row for row in rows if text.percent(row.accuracy) == text.percent(best.accuracy)]
    accuracy = f"{text.percent(best.accuracy)} %"
    if len(equal) == len(rows):
        return f"All {len(rows)} methods end at {accuracy}."
    if len(equal) > 1:
        return f"{_names([row.label for row in equal])} end highest, level at {accuracy}."
    if best is base:
        second = max((row for row in rows if row is not best), key=lambda row: row.accuracy)
        ahead = f"{text.percent(best.accuracy - second.accuracy)} points above {second.label}"
        return (
            f"{best.label} ends highest, at {accuracy}, {ahead}{_carried(tests[second.label], len(tests))}."
        )
    ahead = f"{text.percent(best.accuracy - base.accuracy)} points above {base.label}"
    return f"{best.label} ends highest, at {accuracy}, {ahead}{_carried(tests[best.label], len(tests))}."


def _carried(test: PairedTest, methods: int) -> str:
    """What a test says of a difference, as the end of a sentence."""
    if test.p is None:
        return f"; no test can say whether that is chance ({test.note})"
    corrected = ", corrected by Holm" if methods > 1 else ""
    figures = f"{test.test}, {test.pairs} pairs, p {_p(test.p)}{corrected}"
    return f" ({figures})" if test.p < LEVEL else f", which may be chance ({figures})"


def _verdicts(others: Sequence[Row], base: Row, tests: dict[str, PairedTest]) -> str:
    """Who is ahead beyond chance, who behind, and of whom the tests do not tell."""
    sure = [row for row in others if (p := tests[row.label].p) is not None and p < LEVEL]
    ahead = [row for row in sure if row.accuracy > base.accuracy]
    behind = [row for row in sure if row.accuracy < base.accuracy]
    untested = [row for row in others if tests[row.label].p is None]
    if len(untested) == len(others):
        above = sum(row.accuracy > base.accuracy for row in others)
        return f"{above} of {len(others)} methods lie above {base.label}; none could be tested."
    parts = []
    if ahead:
        parts.append(f"ahead of {base.label} beyond chance: {_gains(ahead, base)}")
    if behind:
        parts.append(f"behind it beyond chance: {_gains(behind, base)}")
    open_ones = len(others) - len(ahead) - len(behind)
    if open_ones:
        parts.append(f"not told apart from it: {open_ones} of {len(others)}")
    said = "; ".join(parts)
    return said[0].upper() + said[1:] + "."


def _gains(rows: Sequence[Row], base: Row) -> str:
    ordered = sorted(rows, key=lambda row: -abs(row.accuracy - base.accuracy))
    named = [f"{row.label} ({_points(row.accuracy - base.accuracy)})" for row in ordered[:_NAMED]]
    rest = len(ordered) - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest else "")


def _cost(best: Row, rows: Sequence[Row]) -> str:
    """What the best one sent, and who comes close for less."""
    if best.silent:
        return f"{best.label} sends nothing."
    near = [row for row in rows if row is not best and best.accuracy - row.accuracy <= NEAR]
    cheap = min(near, key=lambda row: 0.0 if row.silent else row.bytes_total, default=best)
    said = f"{best.label} sent {text.bytes_with_unit(best.bytes_total)} in all"
    if cheap.bytes_total >= best.bytes_total:
        return f"{said}; no other within {100 * NEAR:g} point of it sent less."
    gap = f"{text.percent(best.accuracy - cheap.accuracy)} points below it"
    if cheap.silent:
        return f"{said}; {cheap.label}, {gap}, sends nothing."
    return f"{said}; {cheap.label}, {gap}, needs {text.bytes_with_unit(cheap.bytes_total)}."


def _points(difference: float) -> str:
    return text.signed_percent(difference).replace("-", "−")


def _names(labels: Sequence[str]) -> str:
    shown = list(labels[:_NAMED])
    if len(labels) == 1:
        return shown[0]
    if len(labels) > _NAMED:
        return f"{', '.join(shown)} and {len(labels) - _NAMED} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _p(value: float) -> str:
    shown = text.probability(value)
    return shown if shown.startswith("<") else f"= {shown}"
