"""Write the page of schedules: rounds or single answers, accuracy after the same jobs, simulated time to a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from generate.benchmark.figures import COLOURS, new_figure, save
from generate.benchmark.formatting import format_mean_std, provenance_sentence, wrap_text
from potluck.suites.store import Results
from potluck.suites.suite import Suite, Task

TARGET = 0.8
NEAR = 0.02
WHY = (
    "Fast clients are free again first. Unbounded, with all ten clients at work, the jobs go to clients by "
    "their speed, and the slowest does a few of the 150 where whole rounds give it 15. What only slow clients "
    "hold suffers: their own networks, in FedAvg by architecture the model of a pair of them, and where each "
    "client has two classes and all share one model, the classes of slow clients. By default (`schedule.lead`) "
    "a client that is four jobs ahead of the one with the fewest therefore waits: near the end all clients have "
    "done about as many jobs as in whole rounds, and until then no client waited for the slowest in every round."
)


def page(suite: Suite, results: Results) -> str:
    """A table of settings × schedules, and a picture of accuracy over simulated time."""
    reading = (
        "The fleet is `long-tail`: most devices are fast, a few tens of times slower. All schedules do the same number "
        f"of jobs; accuracy is after the last of them, mean and standard deviation over {len(suite.seeds)} seeds, in "
        f"per cent. Seconds are simulated, until {TARGET:.0%} is reached (mean over the seeds that reach it)."
    )
    parts = [
        "# Whole rounds, or answers as they come",
        wrap_text(provenance_sentence(suite, results)),
        wrap_text(reading),
    ]
    parts.append(_table(suite, results))
    parts.append(_words(suite, results))
    parts.append("![Accuracy over simulated time](figures/asynchrony.svg)")
    return "\n\n".join(parts) + "\n"


def _settings(suite: Suite) -> dict[str, dict[str, Task]]:
    """Tasks by setting (their name without the schedule), then by schedule."""
    found: dict[str, dict[str, Task]] = {}
    for task in suite.tasks:
        schedule = task.axes["schedule"]
        found.setdefault(task.title.removesuffix(f", schedule {schedule}"), {})[schedule] = task
    return found


def _table(suite: Suite, results: Results) -> str:
    schedules = list(dict.fromkeys(task.axes["schedule"] for task in suite.tasks))
    lines = [
        f"| setting | method | {' | '.join(schedules)} | {' | '.join(f'{one}: seconds' for one in schedules)} |",
        f"|---|---|{'---:|' * (2 * len(schedules))}",
    ]
    for title, by_schedule in _settings(suite).items():
        for method in next(iter(by_schedule.values())).methods:
            cells = [_found(results, by_schedule[one], method) for one in schedules]
            if any(accuracies for accuracies, _ in cells):
                shown = [format_mean_std(a) for a, _ in cells] + [_seconds(a, s) for a, s in cells]
                lines.append(f"| {title} | {method} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _words(suite: Suite, results: Results) -> str:
    """For each schedule: who ends near whole rounds, who does not, and how much sooner the target is reached."""
    said = ["## What it shows", ""]
    schedules = list(dict.fromkeys(task.axes["schedule"] for task in suite.tasks))
    for schedule in schedules[1:]:
        near, far, ratios = 0, [], []
        for by_schedule in _settings(suite).values():
            for method in by_schedule[schedule].methods:
                whole, theirs = (
                    _found(results, by_schedule[one], method) for one in (schedules[0], schedule)
                )
                if not whole[0] or not theirs[0]:
                    continue
                gap = float(np.mean(theirs[0]) - np.mean(whole[0]))
                near += gap >= -NEAR
                if gap < -NEAR:
                    setting = by_schedule[schedule].name.split("-async")[0]
                    most = _without_the_hit(results, by_schedule[schedules[0]], by_schedule[schedule], method)
                    far.append(f"{method} {100 * gap:+.1f} ({setting}{most})")
                if whole[1] and theirs[1]:
                    ratios.append(float(np.mean(theirs[1]) / np.mean(whole[1])))
        rest = f"; not {', '.join(far)}" if far else ""
        time = (
            f"{TARGET:.0%} is reached in {min(ratios):.0%} to {max(ratios):.0%} of the time" if ratios else ""
        )
        said.append(
            f"* **{schedule}**: {near} of {near + len(far)} lines end within two points of whole rounds{rest}; {time}."
        )
    return "\n".join(said) + "\n\n" + wrap_text(WHY)


def _without_the_hit(results: Results, whole: Task, theirs: Task, method: str) -> str:
    """How far the others are from whole rounds, without the two clients of each seed that lose most.

    Where the server's model is tested, all clients have its accuracy, and there are no others.
    """
    rest: list[float] = []
    for seed in {row.seed for row in results.rows if row.task == theirs.name and row.method == method}:
        found = [
            results.details.get(row.experiment, {}).get("clients", [])
            for task in (whole, theirs)
            for row in results.rows
            if (row.task, row.method, row.seed) == (task.name, method, seed)
        ]
        if len(found) == 2 and len(found[0]) == len(found[1]) > 2 and len(set(found[1])) > 1:
            rest += sorted(np.subtract(found[1], found[0]).tolist())[2:]
    return f"; without the two clients that lose most {100 * np.mean(rest):+.1f}" if rest else ""


def _found(results: Results, task: Task, method: str) -> tuple[list[float], list[float]]:
    """Accuracies at the end and times to the target, over seeds."""
    rows = [row for row in results.rows if row.task == task.name and row.method == method]
    clocks = [results.details.get(row.experiment, {}).get("clock", []) for row in rows]
    times = [next((seconds for seconds, accuracy in clock if accuracy >= TARGET), None) for clock in clocks]
    return [clock[-1][1] for clock in clocks if clock], [one for one in times if one is not None]


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
        axes.plot([x for x, _ in clock], [y for _, y in clock], color=colour, label=label, linewidth=1)
