"""The README's demo table matches the stored comparison."""

import re
from pathlib import Path

from generate import demo

ROOT = Path(__file__).parents[2]


def test_readme_has_the_table_of_the_stored_demo():
    page = (ROOT / "README.md").read_text()
    assert demo.updated(page) == page, "run make pages"


def test_demo_table_shows_percent_spread_and_reference(tmp_path: Path):
    stored = tmp_path / "demo.csv"
    stored.write_text(
        "method,accuracy,accuracy_std,worst_tenth,floats_up_per_client_round,p_value\n"
        "standalone,0.376,0.0634,0.28,0.0,\nfedin,0.618,0.047,0.55,59557.2,0.00195\n"
    )
    page = demo.updated("<!-- demo: made by make pages -->\n<!-- end -->", stored)
    assert "| standalone | 37.6 ± 6.3 | 28 | 0 | reference |" in page
    assert "| fedin | 61.8 ± 4.7 | 55 | 59,557 | 0.002 |" in page


def test_stored_demo_is_of_the_methods_that_make_demo_runs():
    command = re.search(r"potluck compare ([a-z0-9 -]+?) --", (ROOT / "Makefile").read_text())
    assert command is not None
    rows = (ROOT / "results" / "demo.csv").read_text().splitlines()[1:]
    assert command[1].split() == [row.split(",")[0] for row in rows]
