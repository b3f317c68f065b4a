"""The pages on models: their code runs, and their tables are what the script prints."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/bring-your-own-model.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "bring-your-own-model.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "32 torch.Size([4, 32])" in printed
    assert "True" in printed
    assert "conv1.weight (16, 1, 3, 3) of (64, 1, 3, 3)" in printed


def test_the_tables_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "docs/tables/models.py"), run_name="__main__")
    assert capsys.readouterr().out.strip() in (ROOT / "docs/models.md").read_text()
