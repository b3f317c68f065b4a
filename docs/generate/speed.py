"""The table of `docs/engines.md`, out of what `potluck bench --store results/bench.csv` wrote."""

from __future__ import annotations

from pathlib import Path

from generate.text import with_block
from potluck.bench.rows import markdown
from potluck.bench.store import stored_rows

RESULTS = Path(__file__).parents[2] / "results" / "bench.csv"


def renewed(page: str) -> str:
    """The page with the stored rows."""
    return with_block(page, "bench", markdown(stored_rows(RESULTS)))
