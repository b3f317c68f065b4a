"""The benchmark's rows as a table in a file, which the documentation is made from."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.rows import Row, machine
from benchmarks.trials import Spread
from potluck.core.errors import PotluckError
from potluck.core.files import read_text
from potluck.runs.folder import write_atomic

COLUMNS = ("part", "what", "median", "low", "high", "unit", "goal", "at_least", "machine")


def store_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows down; those of the same parts that were there before are replaced, where they stood."""
    old = _lines(path) if path.exists() else []
    new = [_line(row) for row in rows]
    measured = {row.part for row in rows}
    kept: list[dict[str, str]] = []
    for line in old:
        if line["part"] not in measured:
            kept.append(line)
        elif new:
            kept, new = [*kept, *new], []
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*kept, *new])
    write_atomic(path, out.getvalue())


def stored_rows(path: Path) -> list[Row]:
    """The rows of a table."""
    return [_row(line) for line in _lines(path)]


def _line(row: Row) -> dict[str, str]:
    numbers = {name: f"{getattr(row.value, name):.6g}" for name in ("median", "low", "high")}
    goal = "" if row.goal is None else f"{row.goal:g}"
    return {
        "part": row.part,
        "what": row.what,
        **numbers,
        "unit": row.unit,
        "goal": goal,
        "at_least": "yes" if row.at_least else "",
        "machine": machine(),
    }


def _row(line: dict[str, str]) -> Row:
    spread = Spread(float(line["median"]), float(line["low"]), float(line["high"]))
    goal = float(line["goal"]) if line["goal"] else None
    return Row(line["part"], line["what"], spread, cast(Any, line["unit"]), goal, line["at_least"] == "yes")


def _lines(path: Path) -> list[dict[str, str]]:
    reader = csv.DictReader(read_text(path).splitlines())
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise PotluckError(
            f"{str(path)!r} is no table of the benchmark (its columns are not {', '.join(COLUMNS)}); "
            "name another file with --store."
        )
    return list(reader)
