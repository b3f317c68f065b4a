"""Write the page of options: each setting of a method beside its default, on the same samples and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from generate.benchmark.formatting import (
    BELOW,
    count_seeds,
    format_difference,
    format_mean_std,
    format_share,
    needs_public_data,
    provenance_sentence,
    same_split,
    wrap_text,
)
from potluck.analysis.significance import holm
from potluck.core.settings import settings_of
from potluck.methods import method_class
from potluck.suites.statistics import (
    LEVEL,
    REFERENCE,
    Difference,
    by_seed,
    paired_difference,
    share_ended_below,
)
from potluck.suites.store import Results, Row
from potluck.suites.suite import Suite, Task

ALONE = "standalone training"
SHOWN = {"as it comes": "default"}
"""What pages show for labels that stored task names hold."""
NOTES: dict[str, tuple[str, str, Callable[[Sequence[float]], float]]] = {
    "fedgh": ("movement", "header moves per round", lambda values: float(np.mean(values))),
    "pfedafm": ("alpha", "mean of α at the end", lambda values: values[-1]),
    "fedl2g-l": ("movement", "vectors move per round", lambda values: float(np.mean(values))),
    "fedl2g-f": ("movement", "vectors move per round", lambda values: float(np.mean(values))),
}
"""What a method records of itself that is worth a column: its name, the heading, and what becomes of the rounds."""


@dataclass(frozen=True)
class Line:
    """A setting of a method: accuracies over seeds, and its mean distance to the default setting on test samples."""

    setting: str
    default: bool
    validation: tuple[float, ...]
    test: tuple[float, ...]
    received: tuple[float, ...]
    note: tuple[float, ...]
    gain: Difference | None
    significant: bool
    below: float | None


def methods(suite: Suite) -> list[str]:
    """The methods whose options are varied, in the suite's order."""
    return list(
        dict.fromkeys(method for task in suite.tasks for method in task.methods if method != REFERENCE)
    )


def is_default(task: Task) -> bool:
    """Whether a task's settings are its method's defaults."""
    defaults = {each.name: each.default for each in settings_of(method_class(task.methods[0]))}
    return all(defaults[name] == value for name, value in task.experiment.get("method", {}).items())


def lines(suite: Suite, results: Results, method: str) -> list[Line]:
    """A line per setting that has results, in the suite's order, and one of training alone."""
    own_tasks = [task for task in suite.tasks if method in task.methods]
    alone = [task for task in suite.tasks if REFERENCE in task.methods]
    rows = {task.name: _rows(results, task) for task in own_tasks + alone}
    (default,) = (task for task in own_tasks if is_default(task))
    ends = {name: by_seed(own, lambda row: row.final_accuracy) for name, own in rows.items()}
    gains = {
        task.name: paired_difference(ends[task.name], ends[default.name])
        for task in own_tasks + alone
        if task is not default
    }
    tests = {name: gain.p for name, gain in gains.items() if gain is not None and gain.p is not None}
    corrected = holm(tests)
    return [
        _line(
            task,
            rows[task.name],
            results,
            gain=gains.get(task.name),
            significant=corrected.get(task.name, 1.0) < LEVEL,
            below=share_ended_below(
                results,
                rows[task.name],
                [
                    row
                    for other_task in alone
                    if same_split(other_task, task)
                    for row in rows[other_task.name]
                ],
            ),
        )
        for task in own_tasks + alone
        if rows[task.name]
    ]


def _rows(results: Results, task: Task) -> list[Row]:
    return [row for row in results.rows if row.task == task.name]


def _line(
    task: Task,
    rows: list[Row],
    results: Results,
    *,
    gain: Difference | None,
    significant: bool,
    below: float | None,
) -> Line:
    alone = REFERENCE in task.methods
    details = [results.details.get(row.experiment, {}) for row in rows]
    note, _, summarise = NOTES.get(task.methods[0], ("", "", np.mean))
    notes = [entry.get("notes", {}).get(note) for entry in details]
    default = not alone and is_default(task)
    return Line(
        setting=ALONE if alone else SHOWN.get(task.axes["setting"], task.axes["setting"]),
        default=default,
        validation=tuple(
            entry["last"]["validation"] for entry in details if "validation" in entry.get("last", {})
        ),
        test=tuple(row.final_accuracy for row in rows),
        received=tuple(entry["last"]["received"] for entry in details if "received" in entry.get("last", {})),
        note=tuple(summarise([value for _, value in values]) for values in notes if values),
        gain=gain,
        significant=significant,
        below=None if alone or needs_public_data(task.methods[0]) else below,
    )


def table(suite: Suite, results: Results, method: str) -> str:
    """A method's settings, the default marked, and in a sentence what they show."""
    summaries = lines(suite, results, method)
    if not any(line.default for line in summaries):
        return f"Not measured yet; run `potluck benchmark {suite.name} --methods {method} --resume`."
    head = ["setting", "validation", "test", "against default", "below", "as received"]
    if method in NOTES:
        head.append(NOTES[method][1])
    rule = ["---", *["---:"] * (len(head) - 1)]
    cells = [_cells(line, method) for line in summaries]
    return (
        "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *cells])
        + f"\n\n{wrap_text(_verdict(summaries))}"
    )


def _cells(line: Line, method: str) -> list[str]:
    gain = format_difference(line.gain)
    cells = [
        f"{line.setting} (default)" if line.default and line.setting != "default" else line.setting,
        format_mean_std(line.validation),
        format_mean_std(line.test),
        f"**{gain}**" if line.significant and gain else gain,
        format_share(line.below),
        format_mean_std(line.received),
    ]
    if method in NOTES:
        cells.append(f"{np.mean(line.note):.4g}" if line.note else "")
    return cells


def _verdict(summaries: Sequence[Line]) -> str:
    """Which setting validation would choose, and whose clients' test accuracies differ from the default's."""
    best = best_line(summaries)
    default = next(line for line in summaries if line.default)
    ahead = 100 * float(np.mean(best.validation) - np.mean(default.validation))
    chosen = (
        "the default setting"
        if best is default
        else f"{best.setting}, {ahead:.1f} points ahead of the default setting"
    )
    significant = [_with_gain(line) for line in summaries if line.significant]
    names = "; ".join(significant) if significant else "none"
    return f"Best on validation: {chosen}. Different by more than chance from the default setting on clients' test samples: {names}."


def setting_of(suite: Suite) -> str:
    """What all tasks have in common, in words."""
    (common,) = {task.title.removesuffix(f", setting {task.axes.get('setting')}") for task in suite.tasks}
    return common


def summary(suite: Suite, results: Results) -> str:
    """How many settings differ from their method's defaults by more than chance, and which."""
    tried, different, better = 0, [], []
    for method in methods(suite):
        summaries = lines(suite, results, method)
        settings = [line for line in summaries if not line.default and line.setting != ALONE]
        tried += len(settings)
        different += [f"{method} with {_with_gain(line)}" for line in settings if line.significant]
        if any(line.default for line in summaries) and not best_line(summaries).default:
            better.append(method)
    text = f"{tried} settings beside the defaults of {len(methods(suite))} methods, on {setting_of(suite)}. "
    text += (
        f"Different from the default setting by more than chance on test samples: {'; '.join(different)}. "
        if different
        else "None differs from its method's default setting by more than chance on test samples. "
    )
    return text + (
        f"Validation samples alone would choose another setting than the default for {', '.join(better)}."
        if better
        else "Validation samples alone would choose the default settings throughout."
    )


def best_line(summaries: Sequence[Line]) -> Line:
    """The setting with the highest accuracy on validation samples; of equals the default."""
    tried = [line for line in summaries if line.setting != ALONE and line.validation]
    return max(tried, key=lambda line: (round(float(np.mean(line.validation)), 6), line.default))


def _with_gain(line: Line) -> str:
    return line.setting if line.gain is None else f"{line.setting} ({100 * line.gain.mean:+.1f})"


def page(suite: Suite, results: Results) -> str:
    """A summary, all methods' tables, and where the numbers come from."""
    seeds = count_seeds(results.rows)
    reading = (
        f"All on {setting_of(suite)}. Accuracy is a mean over the clients' own samples after the last round, in per "
        f"cent, with the standard deviation over {seeds}; *as received* tests clients with what the server "
        "just sent. *Against default* is the difference on test samples to the method's default settings, in points, with its "
        f"95 % interval over seeds; bold where a paired t-test over seeds, corrected for the lines of a table, has p < {LEVEL}. {BELOW} "
        f"**Weak evidence:** with {seeds} of small test sets, differences of a few points are not told "
        "from chance, and a line that is not bold says nothing."
    )
    parts = ["# Options, one at a time", wrap_text(summary(suite, results)), wrap_text(reading)]
    for method in methods(suite):
        parts += [f"## {method}", table(suite, results, method)]
    parts.append(f"## Provenance\n\n{wrap_text(provenance_sentence(suite, results))}")
    return "\n\n".join(parts) + "\n"


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """Draw nothing: the page has no figure."""
