"""Rows older than their code: which they are, and whether the present code still gives them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from potluck.benchmark.digests import code_digest
from potluck.benchmark.measure import experiment_text, measure
from potluck.benchmark.store import Results, Row
from potluck.benchmark.suite import Suite
from potluck.runs.several import run_processes


def stale_rows(results: Results) -> list[Row]:
    """The rows that were made before their method's code, or what it shares with all, changed."""
    return [row for row in results.rows if row.code != code_digest(row.method)]


def label(row: Row) -> str:
    """A row in a few words."""
    return f"{row.task}, {row.method}, seed {row.seed} (commit {row.commit})"


def sample(rows: Iterable[Row]) -> list[Row]:
    """The quickest row of every method and the quickest of every task."""
    chosen: dict[str, Row] = {}
    for kind in ("method", "task"):
        quickest: dict[str, Row] = {}
        for row in sorted(rows, key=lambda one: (one.seconds, one.experiment)):
            quickest.setdefault(getattr(row, kind), row)
        chosen |= {row.experiment: row for row in quickest.values()}
    return list(chosen.values())


def confirm(suite: Suite, results: Results, jobs: int, say: Callable[[str], None]) -> None:
    """Run a sample of the stale rows again. Where all that touch a row agree to the last digit, it counts as new.

    Rows of a method or a task that gave something else are dropped with their trials, to be made again.
    """
    old = stale_rows(results)
    chosen = sample(old)
    texts = [_text(suite, row) for row in chosen]
    changed_methods, changed_tasks = set[str](), set[str]()
    with run_processes(jobs) as pool:
        for row, found in zip(chosen, pool.map(measure, texts), strict=True):
            same = _agrees(results, row, found)
            say(f"{label(row)}: {'the same' if same else 'something else'}")
            if not same:
                (changed_tasks if row.method == "standalone" else changed_methods).add(
                    row.task if row.method == "standalone" else row.method
                )
    dropped = {row.experiment for row in old if row.method in changed_methods or row.task in changed_tasks}
    results.rows = [_renewed(row) for row in results.rows if row.experiment not in dropped]
    results.trials = [
        _renewed(trial)
        for trial in results.trials
        if trial.code == code_digest(trial.method)
        or not (trial.method in changed_methods or trial.task in changed_tasks)
    ]
    results.details = {key: value for key, value in results.details.items() if key not in dropped}
    results.write()
    say(f"{len(old) - len(dropped)} rows confirmed, {len(dropped)} dropped")


def _renewed(entry: Any) -> Any:
    return replace(entry, code=code_digest(entry.method))


def _text(suite: Suite, row: Row) -> str:
    return experiment_text(
        suite.experiment(suite.task(row.task), row.method, row.seed, json.loads(row.settings))
    )


def _agrees(results: Results, row: Row, found: dict[str, Any]) -> bool:
    """Accuracy, the curve, every client's accuracy and what answers give away as they are stored; which clients are
    told of may change.
    """
    known, now = results.details.get(row.experiment, {}), found["details"]
    curves = [[list(point) for point in one.get("curve", ())] for one in (known, now)]
    clients = [one.get("clients") for one in (known, now)]
    return (
        f"{found['row']['accuracy']:.6g}" == f"{row.accuracy:.6g}"
        and curves[0] == curves[1]
        and known.get("leaks") == now.get("leaks")
        and (clients[0] == clients[1] or not all(clients))
    )
