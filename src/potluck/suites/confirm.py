"""Run a sample of stored rows again and record which of them give the same numbers; stored rows are never changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from potluck.core.errors import PotluckError
from potluck.runs.process_pool import run_processes
from potluck.suites.provenance import (
    SAME,
    check_commit,
    confirmation,
    latest_confirmations,
    made_at,
    source_commit,
)
from potluck.suites.store import Results, Row, stored_text
from potluck.suites.suite import Suite
from potluck.suites.work import measure

TIMES = ("seconds", "core_seconds")
"""Numbers of a row that no second run repeats."""


def confirm(
    suite: Suite, results: Results, rows: Sequence[Row], jobs: int, show: Callable[[str], None]
) -> tuple[int, int]:
    """Run rows again; record each with the commit. Returns how many gave the same numbers, and how many others."""
    check_commit(source_commit(), "--confirm stores which commit gave the same numbers")
    counts = {True: 0, False: 0}
    texts = [_work_text(suite, row) for row in rows]
    with run_processes(jobs) as pool:
        for row, measured in zip(rows, pool.map(measure, texts), strict=True):
            different = differences(row, results.details.get(row.experiment, {}), measured)
            counts[not different] += 1
            results.add_confirmation(confirmation(row, same=not different))
            outcome = f"other numbers ({', '.join(different)})" if different else SAME
            show(f"{row_label(row)}: {outcome}")
    return counts[True], counts[False]


def row_label(row: Row) -> str:
    """Return task, method, seed and commit of a row."""
    return f"{row.task}, {row.method}, seed {row.seed} (made at {made_at(row)})"


def choose_sample(results: Results, rows: Sequence[Row], count: int | None) -> list[Row]:
    """Choose rows that were not confirmed at this commit: the quickest of every method and task, then others by time.

    `count` is the number of rows; without it only the quickest of every method and task are taken.
    """
    commit = source_commit()
    records = latest_confirmations(results.rows, results.confirmations)
    confirmed = {digest for digest, record in records.items() if record.commit == commit}
    candidates = sorted(
        (row for row in rows if row.experiment not in confirmed),
        key=lambda row: (row.seconds, row.experiment),
    )
    chosen: dict[str, Row] = {}
    for kind in ("method", "task"):
        quickest: dict[str, Row] = {}
        for row in candidates:
            quickest.setdefault(getattr(row, kind), row)
        chosen |= {row.experiment: row for row in quickest.values()}
    if count is None:
        return list(chosen.values())
    chosen |= {row.experiment: row for row in candidates}
    return list(chosen.values())[:count]


def _work_text(suite: Suite, row: Row) -> str:
    return suite.work(suite.task(row.task), row.method, row.seed, json.loads(row.settings)).text


def differences(row: Row, details: dict[str, Any], measured: dict[str, Any]) -> list[str]:
    """Return the names of stored numbers that came out otherwise; what was not stored at the time does not count."""
    names = [
        field.name
        for field in fields(Row)
        if field.name in measured["row"] and field.name not in TIMES and getattr(row, field.name) is not None
    ]
    differing = [name for name in names if _differs(getattr(row, name), measured["row"][name])]
    new_details = json.loads(json.dumps(measured["details"]))
    differing += [
        name
        for name, value in details.items()
        if value and json.loads(json.dumps(value)) != new_details.get(name)
    ]
    return differing


def _differs(stored: Any, measured: Any) -> bool:
    return measured is None or stored_text(float(stored)) != stored_text(float(measured))


def check_rows(results: Results, rows: Sequence[Row]) -> None:
    """Raise where there is nothing to confirm."""
    if not rows:
        raise PotluckError(
            f"--confirm: no rows of {str(results.table)!r} match; run the suite first, or leave out --tasks, "
            "--methods and --seeds."
        )
