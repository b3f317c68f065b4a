"""Which round of a run is its best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def best_row(rounds: Sequence[Row], selected_by: str) -> Row | None:
    """The evaluated round of `rounds.jsonl` that was the first best on validation or test samples, or the last one.

    Nothing before the first evaluation, or where validation samples were to choose and nobody looked at any.
    """
    evaluated = [row for row in rounds if row.get("accuracy") is not None]
    if selected_by == "last":
        return evaluated[-1] if evaluated else None
    key = "accuracy_validation" if selected_by == "validation" else "accuracy"
    known = [row for row in evaluated if row.get(key) is not None]
    return max(known, key=lambda row: float(row[key]), default=None)
