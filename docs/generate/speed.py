"""Write the table of `docs/engines.md` from the stored rows of `make bench`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import markdown, stored_rows
from generate.text import replace_block

RESULTS = Path(__file__).parents[2] / "results" / "bench.csv"


def update_page(page: str) -> str:
    """The page with the stored rows."""
    return replace_block(page, "bench", markdown(stored_rows(RESULTS)))
