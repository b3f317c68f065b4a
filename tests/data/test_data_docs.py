"""The code blocks of the data pages run as they stand, and print what they say they print."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["data.md", "bring-your-own-data.md"])
def test_every_code_block_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path / "root"))
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
        printed = capsys.readouterr().out
        for promised in re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE):
            assert promised.split("…")[0].split(":")[0] in printed
            if "…" not in promised and not promised.startswith("("):
                assert promised in printed


def test_the_sources_table_lists_every_source():
    from potluck.data import list_data

    table = (DOCS / "data.md").read_text()
    for source in list_data():
        assert f"`{source.name}`" in table or f"`{source.name}:" in table
