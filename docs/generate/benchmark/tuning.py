"""What the benchmark page says of tuning, from stored trials: what every method saw, and how much the choice mattered."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from generate.benchmark.formatting import wrap_text
from generate.text import table
from potluck.suites.statistics import HEAD, POOLED, PUBLIC, SAME, MethodSummary
from potluck.suites.store import Results
from potluck.suites.suite import Suite, Task

NAMES = {
    SAME: "standalone, as long as the methods",
    HEAD: "standalone, a head on the frozen network",
    PUBLIC: "standalone, own and public samples",
    POOLED: "pooled training",
}
"""What pages call the trained baselines."""
Measured = Sequence[tuple[Task, Sequence[MethodSummary]]]


def tuning_sentences(suite: Suite, results: Results, measurements: Measured) -> str:
    """How settings were chosen, and in how many tunings the best learning rate is the lowest or the highest tried."""
    cases = at_end = added = 0
    for task, lines in measurements:
        for line in lines:
            scores = candidate_scores(results, task.name, line.method)
            rates = {settings: float(json.loads(settings).get("training.lr", "nan")) for settings in scores}
            if rates and line.method not in suite.without_rate:
                best = rates[max(scores, key=lambda settings: scores[settings])]
                cases += 1
                at_end += best in (min(rates.values()), max(rates.values()))
                added += not set(rates.values()) <= set(task.rates)
    if not cases:
        return "No tuning trials are stored of these rows."
    text = (
        "Every method, and standalone training alike, sees the same learning rates, times two values of the option that "
        f"its paper tunes, on the seeds {', '.join(map(str, suite.tuning_seeds))}, scored on validation samples. In "
        f"{at_end} of the {cases} tunings the best learning rate is the lowest or the highest that was tried"
    )
    if added:
        text += f"; in {added} rates beyond those of the task were tried (at most {suite.tuning_wider})"
    elif at_end and suite.tuning_wider:
        text += (
            f"; the rates beyond it, of which the suite now allows {suite.tuning_wider}, are not among the stored trials, "
            "so these methods may be undertuned"
        )
    for method in suite.without_rate:
        values = len(suite.options[method][1]) if method in suite.options else 0
        text += f". {method} takes no gradient steps: instead of rates it sees {values} values of its option"
    return f"{text}."


def sensitivity(suite: Suite, results: Results, measurements: Measured) -> str:
    """For each method what was chosen, and how much the choice mattered on validation samples."""
    parts = []
    for task, lines in measurements:
        rows = []
        for line in lines:
            scores = candidate_scores(results, task.name, line.method)
            if scores:
                chosen = json.loads(line.rows[0].settings)
                rows.append(
                    [
                        NAMES.get(line.method, line.method),
                        ", ".join(f"{name.split('.')[-1]} {value}" for name, value in chosen.items()),
                        len(scores),
                        f"{100 * max(scores.values()):.1f}",
                        f"{100 * min(scores.values()):.1f}",
                    ]
                )
        if rows:
            head = ("method", "chosen", "settings tried", "best on validation", "worst on validation")
            parts.append(f"**{task.title}**\n\n{table(head, rows, numbers=(2, 3, 4))}")
    if not parts:
        return ""
    text = (
        f"Means over the tuning seeds {', '.join(map(str, suite.tuning_seeds))}, in per cent: the setting that was chosen, "
        "and the one that was worst. A method whose two numbers are near each other was not favoured by its tuning."
    )
    return "\n\n".join([f"## Sensitivity to tuning\n\n{wrap_text(text)}", *parts])


def candidate_scores(results: Results, task: str, method: str) -> dict[str, float]:
    """The mean validation accuracy of each candidate of a method on a task over the tuning seeds."""
    gathered: dict[str, list[float]] = {}
    for trial in results.trials:
        if (trial.task, trial.method) == (task, method) and trial.validation is not None:
            gathered.setdefault(trial.settings, []).append(trial.validation)
    return {settings: float(np.mean(values)) for settings, values in gathered.items()}
