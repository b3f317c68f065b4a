"""Write the README's table from the comparison that `make demo` made."""

from __future__ import annotations

import csv
from pathlib import Path

from generate.text import replace_block, table

RESULTS = Path(__file__).parents[2] / "results" / "demo.csv"
COLUMNS = ["method", "accuracy", "worst tenth", "numbers up", "p"]


def updated(readme: str, results: Path = RESULTS) -> str:
    """Insert the table into the README."""
    with results.open(encoding="utf-8", newline="") as file:
        rows = [_cells(row) for row in csv.DictReader(file)]
    return replace_block(readme, "demo", table(COLUMNS, rows, numbers=range(1, len(COLUMNS))))


def _cells(row: dict[str, str]) -> list[str]:
    """Accuracies in per cent, numbers per client and round, p against standalone."""
    accuracy, spread, worst = (100 * float(row[name]) for name in ("accuracy", "accuracy_std", "worst_tenth"))
    p = f"{float(row['p_value']):.3f}" if row["p_value"] else "reference"
    numbers = f"{float(row['floats_up_per_client_round']):,.0f}"
    return [row["method"], f"{accuracy:.1f} ± {spread:.1f}", f"{worst:.0f}", numbers, p]
