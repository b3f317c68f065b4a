"""`potluck benchmark`: a suite of tasks, every method tuned alike, with results as data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli import options
from potluck.cli.run import command_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from potluck.suites.runner import Runner
    from potluck.suites.store import Results
    from potluck.suites.suite import Suite


Confirm = Annotated[
    bool,
    typer.Option(
        "--confirm", help="run a sample of stored rows again and record which give the same numbers"
    ),
]
Sample = Annotated[
    int | None,
    typer.Option("--sample", help="rows to confirm; else the quickest of every method and task", min=1),
]
EstimateOnly = Annotated[
    bool, typer.Option("--estimate", help="only measure what the missing runs would take")
]
Draft = Annotated[bool, typer.Option("--draft", help="store rows although the source is at no clean commit")]
Merge = Annotated[
    Path | None, typer.Option("--merge", help="only take the rows of another folder of results")
]


def benchmark(
    suite: Annotated[
        str, typer.Argument(metavar="[SUITE]", help="a suite's name, or a suite of your own: FILE.toml")
    ] = "cpu",
    tasks: Annotated[str | None, typer.Option("--tasks", help="comma list; else all")] = None,
    methods: Annotated[str | None, typer.Option("--methods", help="comma list; else all")] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="such as 0,1,2 or 0-2; default: the suite's")
    ] = None,
    results: Annotated[Path, typer.Option("--results", help="where results are kept")] = Path("results"),
    jobs: Annotated[int, typer.Option("--jobs", help="runs at once; 0: one per core", min=0)] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="add what is missing")] = False,
    confirm: Confirm = False,
    sample: Sample = None,
    estimate: EstimateOnly = False,
    draft: Draft = False,
    merge: Merge = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no line per run")] = False,
) -> None:
    """Run tasks × methods × seeds, each method tuned with the same small budget; keep a row per run."""
    from potluck.core.errors import PotluckError
    from potluck.suites.provenance import check_commit, source_commit
    from potluck.suites.store import Results
    from potluck.suites.suite import find_suite

    if sample is not None and not confirm:
        raise PotluckError(f"--sample {sample} has no effect without --confirm; add --confirm.")
    chosen = find_suite(suite)
    stored = Results.read(results, chosen.name)
    if merge is not None:
        return _merge(stored, merge)
    show = options.silent if quiet else typer.echo
    runner = _runner(chosen, stored, tasks, methods, seeds)
    if estimate:
        return _estimate(runner)
    if confirm:
        return _confirm(runner, sample, jobs or os.cpu_count() or 1, show)
    if stored.rows and not resume:
        raise PotluckError(
            f"{str(stored.table)!r} has {len(stored.rows)} results already; pass --resume to add what is missing, or "
            "another folder with --results."
        )
    if not draft:
        check_commit(
            source_commit(), "Rows name the commit that made them", ", or pass --draft to try something out"
        )
    return _run(runner, jobs, show)


def _runner(
    suite: Suite, stored: Results, tasks: str | None, methods: str | None, seeds: str | None
) -> Runner:
    """Build the runner of the chosen part of a suite."""
    from potluck.experiment.sections import split_list
    from potluck.suites.runner import Runner

    return Runner(
        suite,
        stored,
        [suite.task(name) for name in split_list(tasks)] or suite.tasks,
        _checked_methods(methods, [method for task in suite.tasks for method in task.methods]),
        options.parse_seeds(seeds) if seeds else None,
        command_line(),
    )


def _confirm(runner: Runner, sample: int | None, jobs: int, show: Callable[[str], None]) -> None:
    """Run a sample of the stored rows again and print how many gave the same numbers."""
    from potluck.suites.confirm import check_rows, choose_sample, confirm
    from potluck.suites.provenance import provenance_text

    stored, tasks = runner.results, {task.name for task in runner.tasks}
    rows = [
        row
        for row in stored.rows
        if row.task in tasks
        and row.method in runner.methods
        and (runner.seeds is None or row.seed in runner.seeds)
    ]
    check_rows(stored, rows)
    same, different = confirm(runner.suite, stored, choose_sample(stored, rows, sample), jobs, show)
    typer.echo(f"{same + different} rows run again: {same} gave the same numbers, {different} others")
    typer.echo(provenance_text(stored.rows, stored.confirmations))
    if different:
        raise typer.Exit(1)


def _estimate(runner: Runner) -> None:
    """Print what the missing runs of every task would take, or why they cannot run; exit with 1 in that case."""
    from potluck.suites.runner import Estimate, estimate

    costs: list[Estimate] = []
    for cost in estimate(runner):
        costs.append(cost)
        summary = f"{cost.task}, {cost.method}: {cost.trials} trials and {cost.runs} runs"
        if cost.problem:
            typer.echo(f"{summary} cannot run: {cost.problem}")
        else:
            typer.echo(f"{summary} of {cost.seconds:.1f} s, {cost.core_hours:.2f} core-hours")
    possible = [cost for cost in costs if not cost.problem]
    for task in dict.fromkeys(cost.task for cost in possible):
        hours = sum(cost.core_hours for cost in possible if cost.task == task)
        typer.echo(f"{task}: {hours:.2f} core-hours")
    wider = sum(cost.wider_hours for cost in possible)
    if wider:
        typer.echo(
            f"Trials of learning rates beyond the best one, where that is at an end of the grid, come on top: "
            f"at most {runner.suite.tuning_wider} rates per method, {wider:.1f} core-hours."
        )
    if possible or not costs:
        typer.echo(f"Missing in all: {sum(cost.core_hours for cost in possible):.1f} core-hours")
    if len(possible) < len(costs):
        typer.echo(f"{len(costs) - len(possible)} of {len(costs)} methods cannot run and are not counted.")
        raise typer.Exit(1)


def _merge(stored: Results, folder: Path) -> None:
    """Take another folder's rows."""
    from potluck.core.errors import PotluckError
    from potluck.suites.store import Results

    other = Results.read(folder, stored.name)
    if not other.rows and not other.trials:
        raise PotluckError(f"--merge: there is no {other.table.name} with results in {str(folder)!r}.")
    merged_rows = stored.merge(other)
    typer.echo(f"{merged_rows} rows taken from {other.table}; {len(stored.rows)} rows in {stored.table}")


def _run(runner: Runner, jobs: int, show: Callable[[str], None]) -> None:
    """Do the runs that are missing, then print a table of what is stored."""
    from potluck.cli.progress import count_lines

    trials, runs = runner.count()
    typer.echo(f"To do: {trials} tuning trials and {runs} runs; results go to {runner.results.table}")
    failures = runner.run(jobs or os.cpu_count() or 1, count_lines(trials + runs, show))
    _print_summary(runner)
    for sentence in failures:
        typer.echo(f"Failed: {sentence}", err=True)
    typer.echo(f"{len(runner.results.rows)} rows in {runner.results.table}")
    if failures:
        raise typer.Exit(1)


def _print_summary(runner: Runner) -> None:
    """Print mean accuracy and difference to standalone of every method and task that was asked for."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from potluck.suites.statistics import REFERENCE, summarise_task

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("task", "method"):
        table.add_column(heading, no_wrap=True)
    for heading in ("seeds", "accuracy, %", f"- {REFERENCE}, points"):
        table.add_column(heading, justify="right", no_wrap=True)
    for task in runner.tasks:
        for line in summarise_task(runner.results, task.name):
            if line.method in {REFERENCE, *runner.methods}:
                gain = "" if line.gain is None else f"{100 * line.gain.mean:+.1f}"
                table.add_row(task.name, line.method, str(len(line.rows)), f"{100 * line.accuracy:.1f}", gain)
    if table.row_count:
        Console().print(table)


def _checked_methods(text: str | None, available: list[str]) -> list[str]:
    from potluck.core.errors import unknown
    from potluck.experiment.sections import split_list

    for word in split_list(text):
        if word not in available:
            raise unknown("method of the suite", word, available)
    return split_list(text) or available
