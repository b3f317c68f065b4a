"""Write `docs/benchmark.md` from stored results: tables, figures and sentences that follow from the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from generate.benchmark.choices import choices
from generate.benchmark.figures import rank_figure, traffic_figure
from generate.benchmark.formatting import provenance_sentence, wrap_text
from potluck.suites.statistics import (
    LEVEL,
    REFERENCE,
    MethodSummary,
    mean_ranks,
    pareto_front,
    summarise_task,
)
from potluck.suites.store import Results
from potluck.suites.suite import Suite, Task

FIGURES = "figures"


def page(suite: Suite, results: Results) -> str:
    """The whole page; the same text for the same results."""
    tasks = measured_tasks(suite, results)
    parts = [_head(suite, results), _words(results, tasks)]
    parts += [_task(task, summarise_task(results, task.name), _unable(task, results)) for task in tasks]
    widest = ranked_tasks(tasks)
    parts += [
        choices(results, widest),
        _ranks(results, widest),
        _under_way(suite, results, tasks),
        _footing(suite, results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def measured_tasks(suite: Suite, results: Results) -> list[Task]:
    """The tasks that most of their methods have done; a few first rows are no table yet."""
    return [task for task in suite.tasks if 2 * len(summarise_task(results, task.name)) > len(task.methods)]


def ranked_tasks(tasks: Sequence[Task]) -> list[Task]:
    """The tasks that the most methods were asked to do: over others a mean would leave most methods out."""
    most = max((len(task.methods) for task in tasks), default=0)
    return [task for task in tasks if len(task.methods) == most]


def _unable(task: Task, results: Results) -> list[str]:
    """Methods whose every trial on a task failed."""
    scores: dict[str, list[float | None]] = {}
    for trial in results.trials:
        if trial.task == task.name:
            scores.setdefault(trial.method, []).append(trial.validation)
    return [method for method in task.methods if scores.get(method) and not any(scores[method])]


def _under_way(suite: Suite, results: Results, tasks: Sequence[Task]) -> str:
    """Tasks of the suite without a table so far."""
    left = [
        f"{task.title} ({len(summarise_task(results, task.name))} of {len(task.methods)} methods)"
        for task in suite.tasks
        if task not in tasks
    ]
    return wrap_text(f"Still to be measured: {'; '.join(left)}.") if left else ""


def _head(suite: Suite, results: Results) -> str:
    origin = wrap_text(provenance_sentence(suite, results))
    reading = wrap_text(
        "How to read it: accuracy is the mean over clients on their own test samples, in per cent, at the round "
        "that was "
        f"best on *validation* samples; ± is the standard deviation over {len(suite.seeds)} seeds. Every method had "
        f"the same "
        f"budget of {suite.trials} tuning trials, on another seed and {suite.tuning_share:.0%} of the rounds, "
        f"scored on "
        "validation. *Gain* is the difference to standalone training in points, and its p-value is Wilcoxon's "
        "signed-rank "
        "test over the clients of all seeds after the last round, each paired with itself trained alone, with "
        "Holm's correction over "
        "the methods "
        f"of the task; bold where p < {LEVEL:g}. *Worst* is the mean of the worst tenth of the clients. *Newcomers* "
        f"is what "
        "clients that took no part in training gain from the federation when they join at the end, over the same "
        "model "
        "trained alone for as long. *Numbers* are what travels per client and round, both ways."
    )
    return f"# Benchmark: what these methods do on real data\n\n{origin}\n\n{reading}"


def _words(results: Results, tasks: Sequence[Task]) -> str:
    """Who gains where, in sentences made of the table."""
    said = ["## What it shows", ""]
    wins: dict[str, list[str]] = {}
    losses: dict[str, list[str]] = {}
    for task in tasks:
        found = summarise_task(results, task.name)
        better = [line for line in found if line.verdict == "better"]
        worse = [line for line in found if line.verdict == "worse"]
        for line in better:
            wins.setdefault(line.method, []).append(task.name)
        for line in worse:
            losses.setdefault(line.method, []).append(task.name)
        said.append(f"* **{task.title}**: {_sentence(found, better, worse)}")
    often = sorted(wins, key=lambda method: (-len(wins[method]), method))
    if often:
        told = "; ".join(f"{method} on {len(wins[method])} of {len(tasks)}" for method in often[:6])
        said.append(f"* Significantly ahead of standalone training most often: {told}.")
    never = sorted(method for method in losses if method not in wins)
    if never:
        said.append(f"* Significantly behind on some task and ahead on none: {', '.join(never)}.")
    return "\n".join(said)


def _sentence(
    found: Sequence[MethodSummary], better: Sequence[MethodSummary], worse: Sequence[MethodSummary]
) -> str:
    base = next((line for line in found if line.method == REFERENCE), None)
    if base is None:
        return "standalone training was not run."
    parts = [f"standalone training reaches {base.accuracy:.1%}"]
    if better:
        top = max(better, key=lambda line: line.gain or 0)
        parts.append(
            f"{len(better)} of {len(found) - 1} methods are significantly ahead, most of all {top.method} "
            f"(+{100 * (top.gain or 0):.1f} points at {top.floats:,.0f} numbers per client and round)"
        )
        least = min(better, key=lambda line: line.floats)
        if least.method != top.method:
            parts.append(
                f"with the least traffic {least.method} (+{100 * (least.gain or 0):.1f}, {least.floats:,.0f} numbers)"
            )
    else:
        parts.append(f"none of {len(found) - 1} methods is significantly ahead")
    if worse:
        parts.append(f"significantly behind: {', '.join(line.method for line in worse)}")
    return "; ".join(parts) + "."


def _task(task: Task, found: Sequence[MethodSummary], unable: Sequence[str]) -> str:
    head = [
        f"## {task.title}",
        "",
        *([task.why, ""] if task.why else []),
        "| method | accuracy | gain | p | worst | newcomers | numbers | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    best = pareto_front(found)
    body = [_row(line) for line in found]
    tail = [
        "",
        f"Not beaten in accuracy and traffic at once: {', '.join(best)}."
        + (f" Cannot do this task: {', '.join(unable)}." if unable else ""),
        "",
        f"![Accuracy against traffic]({FIGURES}/benchmark-{task.name}.svg)",
    ]
    return "\n".join([*head, *body, *tail])


def _row(line: MethodSummary) -> str:
    gain = "" if line.gain is None else f"{100 * line.gain:+.1f}"
    if line.verdict:
        gain = f"**{gain}**"
    newcomers = "" if line.newcomers is None else f"{100 * line.newcomers:+.1f}"
    p = "" if line.corrected is None else ("< 0.001" if line.corrected < 0.001 else f"{line.corrected:.3f}")
    cells = [
        line.method,
        f"{100 * line.accuracy:.1f} ± {100 * line.std:.1f}",
        gain,
        p,
        f"{100 * line.worst:.1f}",
        newcomers,
        f"{line.floats:,.0f}",
        f"{line.seconds:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _ranks(results: Results, tasks: Sequence[Task]) -> str:
    ranks, critical = mean_ranks(results, [task.name for task in tasks])
    if not ranks:
        return ""
    ordered = sorted(ranks, key=lambda method: (ranks[method], method))
    told = ", ".join(f"{method} {ranks[method]:.1f}" for method in ordered)
    text = wrap_text(
        f"Mean ranks (1 is best) of the {len(ranks)} methods that did all of {len(tasks)} tasks: {told}. Methods whose "
        f"ranks "
        f"differ by less than {critical:.1f} (Nemenyi's critical difference at {LEVEL:g}) are not told apart by so "
        f"few tasks."
    )
    return f"## Ranks\n\n{text}\n\n![Mean ranks]({FIGURES}/benchmark-ranks.svg)"


def _footing(suite: Suite, results: Results) -> str:
    versions = sorted({f"{row.versions}; {row.machine}" for row in results.rows})
    seconds = sum(row.seconds for row in results.rows) + sum(trial.seconds for trial in results.trials)
    text = wrap_text(
        f"`potluck benchmark {suite.name} --resume`: a row whose experiment is stored is not run again. "
        f"`potluck benchmark {suite.name} --confirm --sample 20` runs stored rows again and records which give the same "
        f"numbers. All runs together trained for "
        f"{seconds / 3600:.1f} hours, on one core each. Seconds are of a shared machine and compare only roughly. "
        f"{'; '.join(versions)}."
    )
    return f"## How it was made\n\n{text}"


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """The figures of the page."""
    found = measured_tasks(suite, results)
    for task in found:
        traffic_figure(task.title, summarise_task(results, task.name), folder / f"benchmark-{task.name}.svg")
    ranks, critical = mean_ranks(results, [task.name for task in ranked_tasks(found)])
    if ranks:
        rank_figure(ranks, critical, folder / "benchmark-ranks.svg")
