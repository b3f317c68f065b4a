"""The comparison table in a terminal, fitted to its width."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from potluck.analysis.comparison import compare
from potluck.analysis.tables import print_comparison
from potluck.runs.read import read_run
from support.synthetic_runs import make_run


def test_one_table_of_the_columns_that_fit(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path, method=name)) for name in ("standalone", "fedgh")]
    comparison = compare(runs, target=0.5)
    for width in (60, 100, 250):
        out = io.StringIO()
        print_comparison(comparison, Console(file=out, width=width))
        text = out.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert text.count("method ") == 1
        assert "± " in text
        assert ("No room for: " in text) == (width < 250)
