"""Write the page of schedules: rounds or single answers, accuracy after the same jobs, simulated time to a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from generate.benchmark.figures import COLOURS, new_figure, save
from generate.benchmark.formatting import (
    NO_BELOW,
    count_seeds,
    format_difference,
    format_mean_std,
    provenance_sentence,
    wrap_text,
)
from generate.text import table
from potluck.suites.statistics import accuracy_step, paired_difference, with_least_spread
from potluck.suites.store import Results
from potluck.suites.suite import Suite, Task

TARGET = 0.8
ENOUGH = 5
"""With fewer seeds the page says that its evidence is weak."""
WHY = (
    "Fast clients are idle again first. Unbounded, with all ten clients at work, jobs go to clients by their speed, and the "
    "slowest does a few of the 150 where whole rounds give it 15. By default (`schedule.lead`) a client that is four jobs "
    "ahead of the one with the fewest therefore waits, so that near the end all have done about as many jobs as in whole "
    "rounds."
)


def page(suite: Suite, results: Results) -> str:
    """A table of settings × schedules, and a picture of accuracy over simulated time."""
    reading = (
        "The fleet is `long-tail`: most devices are fast, a few tens of times slower. All schedules do the same number "
        f"of jobs; accuracy is after the last of them, mean and standard deviation over {count_seeds(results.rows)}, in "
        f"per cent. Seconds are simulated, until {TARGET:.0%} is reached (mean over the seeds that reach it). "
        f"{NO_BELOW}"
    )
    parts = [
        "# Synchronous and asynchronous schedules",
        wrap_text(reading),
    ]
    parts.append(_table(suite, results))
    parts.append(_words(suite, results))
    parts.append("![Accuracy over simulated time](figures/asynchrony.svg)")
    parts.append(f"## Provenance\n\n{wrap_text(provenance_sentence(suite, results))}")
    return "\n\n".join(parts) + "\n"


def _settings(suite: Suite) -> dict[str, dict[str, Task]]:
    """Tasks by setting (their name without the schedule), then by schedule."""
    groups: dict[str, dict[str, Task]] = {}
    for task in suite.tasks:
        schedule = task.axes["schedule"]
        groups.setdefault(task.title.removesuffix(f", schedule {schedule}"), {})[schedule] = task
    return groups


def _table(suite: Suite, results: Results) -> str:
    schedules = list(dict.fromkeys(task.axes["schedule"] for task in suite.tasks))
    lines = [
        f"| setting | method | {' | '.join(schedules)} | {' | '.join(f'{schedule}: seconds' for schedule in schedules)} |",
        f"|---|---|{'---:|' * (2 * len(schedules))}",
    ]
    for title, by_schedule in _settings(suite).items():
        for method in next(iter(by_schedule.values())).methods:
            cells = [_found(results, by_schedule[runs], method) for runs in schedules]
            if any(accuracies for accuracies, _ in cells):
                shown = [format_mean_std(a) for a, _ in cells] + [_seconds(a, s) for a, s in cells]
                lines.append(f"| {title} | {method} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _words(suite: Suite, results: Results) -> str:
    """Compare each schedule with whole rounds, seed by seed: accuracy in the end, and time to the target as a ratio."""
    schedules = list(dict.fromkeys(task.axes["schedule"] for task in suite.tasks))
    rows, steps = [], []
    for title, by_schedule in _settings(suite).items():
        step = _step(results, list(by_schedule.values()))
        steps += [step] if step else []
        for method in by_schedule[schedules[0]].methods:
            synchronous = _by_seed(results, by_schedule[schedules[0]], method)
            for schedule in schedules[1:]:
                asynchronous = _by_seed(results, by_schedule[schedule], method)
                difference = paired_difference(
                    *({seed: run[0] for seed, run in runs.items()} for runs in (asynchronous, synchronous))
                )
                if difference is not None:
                    difference = with_least_spread(difference, step)
                    cells = (format_difference(difference), _time_ratio(asynchronous, synchronous))
                    rows.append((title, method, schedule, *cells))
    if not rows:
        return ""
    weak = "**Weak evidence.** " if len({row.seed for row in results.rows}) < ENOUGH else ""
    text = (
        "Difference to whole rounds in accuracy, in points, and ratio of the times to the target (geometric mean), seed by "
        f"seed, each with its 95 % interval (Student's t over seeds). {weak}With {count_seeds(results.rows)} a difference "
        "whose interval has 0 in it is undecided; two schedules are level where the interval lies within the margin that "
        f"one cares for. {_resolution(steps)}"
    )
    head = ("setting", "method", "schedule", "difference [95 %]", "time, ratio [95 %]")
    return f"## Against whole rounds\n\n{wrap_text(text)}\n\n{table(head, rows, numbers=(3, 4))}\n\n{wrap_text(WHY)}"


def _step(results: Results, tasks: Sequence[Task]) -> float:
    """By how much one test sample moves an accuracy, by the clients of all runs of a setting; the mean over seeds."""
    names, runs = {task.name for task in tasks}, dict[int, list[list[float]]]()
    for row in results.rows:
        if row.task in names and (clients := results.details.get(row.experiment, {}).get("clients")):
            runs.setdefault(row.seed, []).append(clients)
    return float(np.mean([accuracy_step(values) for values in runs.values()])) if runs else 0.0


def _resolution(steps: Sequence[float]) -> str:
    """What accuracies can tell apart at all, and what that means for intervals."""
    if not steps:
        return ""
    least, most = (f"{100 * step:.1f}" for step in (min(steps), max(steps)))
    size = least if least == most else f"{least} to {most}"
    return (
        f"One test sample moves an accuracy by about {size} points; where seeds differ by less than that, the interval "
        "is that of a spread of one sample, since equal differences of so few seeds are chance."
    )


Runs = dict[int, tuple[float, float | None]]
"""Accuracy at the end and time to the target, by seed."""


def _by_seed(results: Results, task: Task, method: str) -> Runs:
    by_seed: Runs = {}
    for row in results.rows:
        if (row.task, row.method) == (task.name, method):
            clock = results.details.get(row.experiment, {}).get("clock", [])
            reached = next((seconds for seconds, accuracy in clock if accuracy >= TARGET), None)
            if clock:
                by_seed[row.seed] = clock[-1][1], reached
    return by_seed


def _time_ratio(asynchronous: Runs, synchronous: Runs) -> str:
    """Return the geometric mean of the ratios of times, with its interval; nothing where a target was not reached."""
    logs = [
        {seed: float(np.log(seconds)) for seed, (_, seconds) in runs.items() if seconds}
        for runs in (asynchronous, synchronous)
    ]
    difference = paired_difference(*logs)
    if difference is None:
        return ""
    mean, low, high = (float(np.exp(value)) for value in (difference.mean, difference.low, difference.high))
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]" if difference.seeds > 1 else f"{mean:.2f}"


def _found(results: Results, task: Task, method: str) -> tuple[list[float], list[float]]:
    """Accuracies at the end and times to the target, over seeds."""
    rows = [row for row in results.rows if row.task == task.name and row.method == method]
    clocks = [results.details.get(row.experiment, {}).get("clock", []) for row in rows]
    times = [next((seconds for seconds, accuracy in clock if accuracy >= TARGET), None) for clock in clocks]
    return [clock[-1][1] for clock in clocks if clock], [seconds for seconds in times if seconds is not None]


def _seconds(accuracies: list[float], times: list[float]) -> str:
    if not accuracies:
        return ""
    few = f" ({len(times)} of {len(accuracies)})" if len(times) < len(accuracies) else ""
    return f"{np.mean(times):.1f}{few}" if times else "not reached"


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """One panel per setting and method: accuracy over simulated seconds for each schedule, every seed a line."""
    panels = [
        (title, method, by_schedule)
        for title, by_schedule in _settings(suite).items()
        for method in next(iter(by_schedule.values())).methods
        if any(_found(results, task, method)[0] for task in by_schedule.values())
    ]
    if not panels:
        return
    figure = new_figure(3.2 * len(panels), 3.0)
    for axes, (title, method, by_schedule) in zip(
        np.atleast_1d(figure.subplots(1, len(panels), sharey=True)), panels, strict=True
    ):
        for colour, (schedule, task) in zip(COLOURS, by_schedule.items(), strict=False):
            _curves(axes, results, task, method, schedule, colour)
        axes.set_title(f"{method}\n{title}", fontsize=7)
        axes.set_xscale("log")
        axes.set_xlabel("simulated seconds")
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("accuracy")
    figure.axes[0].legend(fontsize=7, frameon=False)
    save(figure, folder / "asynchrony.svg")


def _curves(axes: Any, results: Results, task: Task, method: str, schedule: str, colour: str) -> None:
    rows = [row for row in results.rows if row.task == task.name and row.method == method]
    for number, row in enumerate(rows):
        clock = results.details.get(row.experiment, {}).get("clock", [])
        label = schedule if number == 0 else None
        axes.plot(
            [x for x, _ in clock], [y for _, y in clock], color=colour, label=label, linewidth=1, alpha=0.5
        )
