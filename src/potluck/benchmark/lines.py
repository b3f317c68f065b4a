"""Frozen dataclasses of words and numbers as the lines of a CSV file, and back."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any


def to_csv(kind: type[Any], rows: Iterable[Any]) -> str:
    """A header of the dataclass's fields, then a line each; what is None is left empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [entry.name for entry in fields(kind)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _text(value) for name, value in asdict(row).items()})
    return out.getvalue()


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def from_line(kind: type[Any], entry: dict[str, str]) -> Any:
    """A row as it was before it became text."""
    values: dict[str, Any] = {}
    for one in fields(kind):
        text = entry.get(one.name) or ""
        number = "float" in str(one.type)
        values[one.name] = (
            (float(text) if text else None) if number else int(text) if one.type == "int" else text
        )
    return kind(**values)
