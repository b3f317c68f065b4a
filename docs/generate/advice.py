"""Write advice that stored rows of the benchmark support: for readers in a hurry, and method by method."""

from __future__ import annotations

from pathlib import Path

from generate.benchmark.formatting import format_difference, needs_public_data, wrap_text
from generate.benchmark.tasks import Measured, measured_tasks
from generate.text import replace_block, table
from potluck.suites.statistics import (
    AHEAD,
    BEHIND,
    EQUAL,
    POOLED,
    PUBLIC,
    REFERENCE,
    UNDECIDED,
    compare_methods,
    task_power,
)
from potluck.suites.store import Results
from potluck.suites.suite import find_suite

RESULTS = Path(__file__).parents[2] / "results"
SUITE, FROZEN = "cpu", "pretrained"
LINEAR = ("ridge", "logistic")
VERDICTS = (AHEAD, EQUAL, BEHIND, UNDECIDED)


def measured(folder: Path = RESULTS, suite: str = SUITE) -> tuple[Results, Measured]:
    """Return a suite's rows and the tasks that have enough of them."""
    results = Results.read(folder, suite)
    return results, measured_tasks(find_suite(suite), results)


def update_page(page: str, folder: Path = RESULTS) -> str:
    """Return the page on the choice of a method with its block of recommendations as the rows have it."""
    return replace_block(page, "recommended", recommendations(folder))


def recommendations(folder: Path = RESULTS) -> str:
    """Return which methods are ahead of training alone in stored rows, and which were not measured."""
    measurements = [entry for suite in (SUITE, FROZEN) for entry in measured(folder, suite)[1]]
    if not measurements:
        return "No rows are stored, so no method is recommended."
    methods = sorted({line.method for _, lines in measurements for line in lines if not line.is_baseline})
    rows = []
    for method in methods:
        evidence = [(task, line) for task, lines in measurements for line in lines if line.method == method]
        rows.append(
            (
                f"[{method}](methods/{method}.md)",
                *(sum(line.verdict == verdict for _, line in evidence) for verdict in VERDICTS),
                "; ".join(f"{task.title} {format_difference(line.gain)}" for task, line in evidence),
            )
        )
    head = ("method", *VERDICTS, "gain over training alone, points [95 %]")
    ahead = [row[0] for row in rows if row[1]]
    sentence = (
        f"Ahead of training alone on at least one task: {', '.join(ahead)}."
        if ahead
        else "No method that was measured is ahead of training alone, so none is recommended over it."
    )
    other_methods = "Of all other methods there is no evidence in these rows, for or against."
    return f"{wrap_text(f'{sentence} {other_methods}')}\n\n{table(head, rows, numbers=(1, 2, 3, 4))}"


def hospital(folder: Path = RESULTS) -> str:
    """Return in plain words what a site with few samples should do, as far as rows say."""
    results, measurements = measured(folder)
    steps = [
        "**Train alone first**, hold samples out to choose when to stop, and fit a linear model beside it. "
        + _sentences(results, measurements, REFERENCE, LINEAR),
        _step(
            results,
            measurements,
            PUBLIC,
            "**Look for labelled public samples of the same kind and train on them too**",
            "no rows say what that brings",
        ),
        _step(
            results,
            measurements,
            POOLED,
            "**Pool the data where the law lets you**",
            "no rows say what that brings",
        ),
        "**Then try a federated method, against that number**: without public samples, "
        f"{_federated(measurements)}.",
        "**Where a pretrained network reads your data, keep it frozen, train heads alone, and compare again**: on such "
        f"networks, {_federated(measured(folder, FROZEN)[1])} ([rows](pretrained-results.md)).",
        "**If you federate, keep a way back**: [`safeguard`](safeguard.md) lets a client use the federated model only where "
        "its own validation samples speak for it.",
    ]
    titles = ", ".join(f"*{task.title}*" for task, _ in measurements) or "no task so far"
    text = (
        f"The rows are of small public data ({titles}), with tens of training samples per site. They are not of scans, and "
        "two hundred scans of one hospital may behave otherwise: treat this as the order in which to try things."
    )
    lines = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    return f"## What a hospital with 200 scans should do\n\n{wrap_text(text)}\n\n{lines}"


def _sentences(results: Results, measurements: Measured, first: str, other_methods: tuple[str, ...]) -> str:
    sentences = []
    for task, _ in measurements:
        for method in other_methods:
            difference = compare_methods(results, task.name, first, method)
            if difference is not None:
                sentences.append(
                    f"{format_difference(difference)} points over {method} regression on *{task.title}*"
                )
    return f"Networks trained alone are {'; '.join(sentences)}." if sentences else "No rows compare them."


def _step(results: Results, measurements: Measured, name: str, advice: str, unknown: str) -> str:
    sentences = [
        f"{format_difference(difference)} points over training alone on *{task.title}*"
        for task, _ in measurements
        if (difference := compare_methods(results, task.name, name, REFERENCE)) is not None
    ]
    return f"{advice}: {'; '.join(sentences) if sentences else unknown}."


def _federated(measurements: Measured) -> str:
    """Say which methods without public samples were ahead, where none was, and how large a gain would have been found."""
    evidence = [(task, line) for task, lines in measurements for line in lines if not line.is_baseline]
    private = [(task, line) for task, line in evidence if not needs_public_data(line.method)]
    if not private:
        return "no rows say what that brings"
    ahead = [
        f"{line.method} on *{task.title}* ({format_difference(line.gain)})"
        for task, line in private
        if line.verdict == AHEAD
    ]
    if ahead:
        without = [
            f"*{task.title}*"
            for task, lines in measurements
            if not any(line.verdict == AHEAD and not needs_public_data(line.method) for line in lines)
        ]
        return f"ahead: {', '.join(ahead)}" + (f"; none on {', '.join(without)}" if without else "")
    powers = [power for _, lines in measurements if (power := task_power(lines)) is not None]
    size = (
        f" (a gain of {100 * max(power.corrected_gain for power in powers):.1f} points would have been found in four of five repetitions)"
        if powers
        else ""
    )
    return f"none of the methods measured is ahead{size}"
