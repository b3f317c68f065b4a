"""Write `docs/benchmark.md` from stored results: a summary, limitations, baselines, power, then a table per task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from generate.benchmark.baselines import baselines
from generate.benchmark.figures import Curve, curve_figure, gain_figure
from generate.benchmark.formatting import (
    format_difference,
    format_share,
    needs_public_data,
    provenance_sentence,
    wrap_text,
)
from generate.benchmark.tuning import NAMES, sensitivity, tuning_sentences
from generate.text import table
from potluck.suites.baselines import LINES
from potluck.suites.statistics import (
    AHEAD,
    BEHIND,
    EQUAL,
    MARGIN,
    PUBLIC,
    REFERENCE,
    SAME,
    UNDECIDED,
    MethodSummary,
    compare_methods,
    failed_floor,
    summarise_task,
    task_power,
)
from potluck.suites.store import Results
from potluck.suites.suite import Suite, Task

FIGURE = "benchmark-gains.svg"
CURVES = 3
"""How many of the best methods of a task are in the figure of its curves."""
LEAST_SEEDS = 5
"""A method with fewer runs of a task is not shown."""


def page(suite: Suite, results: Results) -> str:
    """The whole page; the same text for the same results."""
    measurements = measured_tasks(suite, results)
    parts = [
        "# Benchmark: federated methods against training alone",
        summary(results, measurements),
        _limitations(suite, results, measurements),
        _how_to_read(suite, results, measurements),
        baselines(results, measurements),
        _power(measurements),
        *(_task(task, lines, results) for task, lines in measurements),
        sensitivity(suite, results, measurements),
        _provenance(suite, results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


Measured = list[tuple[Task, list[MethodSummary]]]


def measured_tasks(suite: Suite, results: Results) -> Measured:
    """Tasks with the reference and at least one method, each with the methods that have enough seeds."""
    measurements = []
    for task in suite.tasks:
        least = min(LEAST_SEEDS, len(task.seeds))
        lines = [line for line in summarise_task(results, task.name) if len(line.rows) >= least]
        if any(line.method == REFERENCE for line in lines) and any(not line.is_baseline for line in lines):
            measurements.append((task, lines))
    return measurements


def summary(results: Results, measurements: Measured) -> str:
    """Three sentences that follow from the rows, and the picture."""
    if not measurements:
        return "No rows are stored."
    methods = [(task, line) for task, lines in measurements for line in lines if not line.is_baseline]
    counts = {
        verdict: sum(line.verdict == verdict for _, line in methods)
        for verdict in (AHEAD, EQUAL, BEHIND, UNDECIDED)
    }
    tasks = "one task" if len(measurements) == 1 else f"{len(measurements)} tasks"
    first = (
        f"Of {len(methods)} comparisons of a federated method with training alone, on {tasks}: {counts[AHEAD]} ahead, "
        f"{counts[EQUAL]} level within one point, {counts[BEHIND]} behind and {counts[UNDECIDED]} undecided."
    )
    ahead = [
        f"{line.method} on *{task.title}* ({format_difference(line.gain)} points)"
        for task, line in methods
        if line.verdict == AHEAD
    ]
    second = f"Ahead: {'; '.join(ahead)}." if ahead else "No method is ahead of training alone."
    third = public_sentence(results, measurements)
    picture = f"![Gain over training alone, with 95 % intervals](figures/{FIGURE})"
    return wrap_text(" ".join(filter(None, (first, second, third)))) + f"\n\n{picture}"


def public_sentence(results: Results, measurements: Measured) -> str:
    """Compare methods on public data with training alone on the same public samples."""
    sentences = []
    for task, lines in measurements:
        for line in lines:
            if needs_public_data(line.method):
                comparison = compare_methods(results, task.name, line.method, PUBLIC)
                if comparison is not None:
                    sentences.append(
                        f"{line.method} {format_difference(comparison)} points ({relation(comparison.low, comparison.high)}) on "
                        f"*{task.title}*"
                    )
    return (
        f"Against training alone on the same public samples as well: {'; '.join(sentences)}."
        if sentences
        else ""
    )


def relation(low: float, high: float) -> str:
    """What an interval alone says: ahead, behind, level within the margin, or undecided."""
    if low > 0:
        return AHEAD
    if high < 0:
        return BEHIND
    return EQUAL if low > -MARGIN and high < MARGIN else UNDECIDED


def _limitations(suite: Suite, results: Results, measurements: Measured) -> str:
    lines = [
        "Small data and small networks: sites have tens of training samples, and networks train in seconds on one core. "
        "Nothing here says what happens at the sizes of the papers.",
        "*Undecided* means that chance reaches further than the difference, not that there is none; the table "
        "[what each task can detect](#what-each-task-can-detect) says how large a gain would have been found.",
        "Intervals are over seeds, which change splits, first weights and the order of samples together; data sets are "
        "few, and no test speaks of other data.",
        "The reference trains for more rounds than the methods, so that its training has ended; the line *"
        f"{NAMES[SAME]}* has as many rounds as they have. No method was tried with more rounds.",
        "Newcomers are tested after the last round, everything else at the round that is best on validation samples.",
    ]
    missing = _missing(suite, measurements)
    if missing:
        lines.append(
            f"Not run yet: {missing}. `potluck benchmark {suite.name} --estimate` measures what they would take, "
            f"`potluck benchmark {suite.name} --resume` runs them."
        )
    return "## Limitations\n\n" + "\n".join(f"* {line}" for line in lines)


def _missing(suite: Suite, measurements: Measured) -> str:
    """Tasks and methods of the suite that have no line so far."""
    measured_methods = {task.name: {line.method for line in lines} for task, lines in measurements}
    parts = []
    for task in suite.tasks:
        missing = [
            NAMES.get(name, name) for name in task.methods if name not in measured_methods.get(task.name, ())
        ]
        if missing:
            names = "all" if len(missing) == len(task.methods) else ", ".join(missing)
            parts.append(f"{task.title} ({names})")
    return "; ".join(parts)


def _how_to_read(suite: Suite, results: Results, measurements: Measured) -> str:
    text = (
        "*Accuracy* is the mean over clients on their own test samples, in per cent, at the round that is best on "
        "validation samples; ± is the standard deviation over seeds. *Gain* is the difference to standalone training, "
        "seed by seed on the same clients and splits, in points, with its 95 % interval (Student's t over seeds). The "
        "*verdict* is that of a paired t-test (ahead, behind) or of two one-sided tests against one point (level), each "
        "with Holm's correction over the methods of a task at 5 %. *Worst* is the mean of the tenth of clients with the "
        "lowest accuracies, *fewest* the gain of the tenth with the fewest training samples, *below* the share of clients "
        "that end below themselves trained alone (about half, less ties, where a method changes nothing but chance), "
        "*newcomers* what clients that join at the end gain over training alone as long. Costs are of one client: "
        "*samples* trained on and *GFLOPs* in all rounds, *numbers* sent and received per round; seconds are processor "
        f"time of the whole run. {tuning_sentences(suite, results, measurements)} All stop at their best round on validation samples."
    )
    return f"## How to read it\n\n{wrap_text(text)}"


def _power(measurements: Measured) -> str:
    rows = []
    for task, lines in measurements:
        power = task_power(lines)
        if power is not None:
            numbers = (100 * power.std, 100 * power.gain, 100 * power.corrected_gain)
            rows.append(
                [
                    task.title,
                    power.seeds,
                    power.methods,
                    *(f"{number:.1f}" for number in numbers),
                    f"{power.needed:,}",
                ]
            )
    if not rows:
        return ""
    text = (
        "The smallest true gain, in points, that a paired t-test at 5 % finds in four of five repetitions: alone, and as "
        "the first of all methods under Holm's correction. *Spread* is the median over methods of the standard deviation "
        "of gains over seeds; the last column is how many seeds would detect one point without correction."
    )
    head = [
        "task",
        "seeds",
        "methods",
        "spread",
        "detectable gain",
        "detectable, corrected",
        "seeds for one point",
    ]
    return f"## What each task can detect\n\n{wrap_text(text)}\n\n{table(head, rows, numbers=range(1, 7))}"


HEAD = (
    "method", "accuracy", "gain [95 %]", "verdict", "worst", "fewest [95 %]", "below", "newcomers [95 %]", "samples",
    "GFLOPs", "numbers", "seconds",
)  # fmt: skip


def _task(task: Task, lines: Sequence[MethodSummary], results: Results) -> str:
    valid = not failed_floor(results, task.name)
    trained = [line for line in lines if line.method not in LINES]
    rows = [_row(line, valid=valid) for line in trained]
    seeds = {len(line.rows) for line in trained}
    sentence = (
        f"{min(seeds)} seeds."
        if len(seeds) == 1
        else f"{min(seeds)} to {max(seeds)} seeds: {_seeds(trained)}."
    )
    parts = [
        f"## {task.title}",
        wrap_text(f"{task.why} {sentence}"),
        table(HEAD, rows, numbers=range(1, len(HEAD))),
    ]
    if curves := task_curves(results, lines):
        names = ", ".join(NAMES.get(method, method) for method in curves)
        caption = (
            f"Mean accuracy over seeds after each evaluation, with a band of one standard deviation: {names} (training alone "
            f"and the {len(curves) - 1} best methods); the reference trains longer."
        )
        parts += [
            f"![Accuracy over rounds: {task.title}](figures/{curve_file(results, task)})",
            wrap_text(caption),
        ]
    return "\n\n".join(parts)


def _seeds(lines: Sequence[MethodSummary]) -> str:
    return ", ".join(f"{NAMES.get(line.method, line.method)} {len(line.rows)}" for line in lines)


def _row(line: MethodSummary, *, valid: bool) -> list[str]:
    return [
        NAMES.get(line.method, line.method),
        f"{100 * line.accuracy:.1f} ± {100 * line.std:.1f}",
        format_difference(line.gain),
        line.verdict if valid else "",
        f"{100 * line.worst:.1f}",
        format_difference(line.small_gain),
        format_share(line.below),
        format_difference(line.joining),
        f"{line.samples:,.0f}",
        f"{line.gflops:.1f}",
        f"{line.floats:,.0f}",
        f"{line.seconds:.1f}",
    ]


def _provenance(suite: Suite, results: Results) -> str:
    versions = sorted({f"{row.versions}; {row.machine}" for row in results.rows})
    spent = sum(row.core_seconds or 0.0 for row in results.rows) / 3600
    text = (
        f"{provenance_sentence(suite, results)} The runs took {spent:.1f} core-hours without their tuning. "
        f"`potluck benchmark {suite.name} --confirm --sample 20` runs stored rows again and records which give the same "
        f"numbers. {'; '.join(versions)}."
    )
    return f"## Provenance\n\n{wrap_text(text)}"


def task_curves(results: Results, lines: Sequence[MethodSummary]) -> dict[str, list[Curve]]:
    """Return the stored curves of every seed of training alone and of the best methods of a task."""
    methods = [line for line in lines if not line.is_baseline][:CURVES]
    shown = [line for line in lines if line.method == REFERENCE] + methods
    curves = {
        line.method: [results.details.get(row.experiment, {}).get("curve", []) for row in line.rows]
        for line in shown
    }
    return {method: own for method, own in curves.items() if all(len(curve) > 1 for curve in own)}


def curve_file(results: Results, task: Task) -> str:
    """The file name of a task's curves."""
    return f"{results.name}-curves-{task.name}.svg"


def draw_curves(results: Results, measurements: Measured, folder: Path) -> None:
    """The curves of each task that has some."""
    for task, lines in measurements:
        if curves := task_curves(results, lines):
            curve_figure(curves, NAMES, folder / curve_file(results, task))


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """The picture of all gains with their intervals, and the curves of each task."""
    measurements = measured_tasks(suite, results)
    if measurements:
        gain_figure({task.title: lines for task, lines in measurements}, NAMES, folder / FIGURE)
    draw_curves(results, measurements, folder)
