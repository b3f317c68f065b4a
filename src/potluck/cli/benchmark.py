"""`potluck benchmark`: a suite of tasks, every method tuned alike, results as data, the page from the data."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from potluck.benchmark.runner import Runner
    from potluck.benchmark.store import Results
    from potluck.benchmark.suite import Suite


def benchmark(
    suite: Annotated[
        str, typer.Argument(metavar="[SUITE]", help="a suite's name, or a suite of your own: FILE.toml")
    ] = "cpu",
    tasks: Annotated[str | None, typer.Option("--tasks", help="comma list; else all")] = None,
    methods: Annotated[str | None, typer.Option("--methods", help="comma list; else all")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="comma list; else the suite's")] = None,
    results: Annotated[Path, typer.Option("--results", help="where results are kept")] = Path("results"),
    jobs: Annotated[int, typer.Option("--jobs", help="runs at once; 0: one per core", min=0)] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="add what is missing")] = False,
    page: Annotated[bool, typer.Option("--page", help="only write the page from the stored results")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="the page; else its place in docs/")] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="only name rows older than their method's code")
    ] = False,
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="run a sample of such rows again; drop those that come out otherwise"),
    ] = False,
    merge: Annotated[
        Path | None,
        typer.Option(
            "--merge", help="only take the rows of another folder of results, from another machine say"
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no line per run")] = False,
) -> None:
    """Run tasks × methods × seeds, each method tuned with the same small budget; keep a row per run."""
    from potluck.benchmark.store import Results
    from potluck.benchmark.suite import find_suite

    chosen = find_suite(suite)
    stored = Results.read(results, chosen.name)
    say = options.silent if quiet else typer.echo
    if stale or confirm:
        return _look_back(chosen, stored, jobs or os.cpu_count() or 1, say if confirm else None)
    if merge is not None:
        return _merge(stored, merge)
    if page:
        return _write_page(chosen, stored, out)
    return _go(_runner(chosen, stored, tasks, methods, seeds, resume), jobs, say)


def _runner(
    suite: Suite, stored: Results, tasks: str | None, methods: str | None, seeds: str | None, resume: bool
) -> Runner:
    """The part of a suite that was asked for."""
    from potluck.benchmark.runner import Runner
    from potluck.core.errors import PotluckError

    if stored.rows and not resume:
        raise PotluckError(
            f"{str(stored.table)!r} has {len(stored.rows)} results already; pass --resume to add what is missing, or "
            "another folder with --results."
        )
    return Runner(
        suite,
        stored,
        [suite.task(name) for name in _words(tasks)] or suite.tasks,
        _known_methods(methods, [method for task in suite.tasks for method in task.methods]),
        [int(word) for word in _words(seeds)] or suite.seeds,
        shlex.join(["potluck", *sys.argv[1:]]),
    )


def _look_back(suite: Suite, stored: Results, jobs: int, say: Callable[[str], None] | None) -> None:
    """Name rows older than their code, or run a sample of them again."""
    from potluck.benchmark.confirm import confirm, label, stale_rows

    if say is not None:
        confirm(suite, stored, jobs, say)
    else:
        for row in stale_rows(stored):
            typer.echo(label(row))


def _merge(stored: Results, folder: Path) -> None:
    """Take another folder's rows."""
    from potluck.benchmark.store import Results
    from potluck.core.errors import PotluckError

    other = Results.read(folder, stored.name)
    if not other.rows and not other.trials:
        raise PotluckError(f"--merge: there is no {other.table.name} with results in {str(folder)!r}.")
    taken = stored.merge(other)
    typer.echo(f"{taken} rows taken from {other.table}; {len(stored.rows)} rows in {stored.table}")


def _write_page(suite: Suite, stored: Results, out: Path | None) -> None:
    from potluck.benchmark.pages import usual_place, write_page

    place = out or usual_place(suite)
    write_page(suite, stored, place)
    typer.echo(f"Page: {place}")


def _go(runner: Runner, jobs: int, say: Callable[[str], None]) -> None:
    from potluck.cli.progress import counted

    trials, runs = runner.count()
    typer.echo(f"To do: {trials} tuning trials and {runs} runs; results go to {runner.results.table}")
    failures = runner.run(jobs or os.cpu_count() or 1, counted(trials + runs, say))
    for sentence in failures:
        typer.echo(f"Failed: {sentence}", err=True)
    typer.echo(f"{len(runner.results.rows)} rows in {runner.results.table}")
    if failures:
        raise typer.Exit(1)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()] if text else []


def _known_methods(text: str | None, known: list[str]) -> list[str]:
    from potluck.core.errors import unknown

    for word in _words(text):
        if word not in known:
            raise unknown("method of the suite", word, known)
    return _words(text) or known
