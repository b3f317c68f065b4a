"""The results page: its code runs as it stands, and it names every kind of figure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from potluck.report import KINDS
from support.synthetic_runs import make_run

PAGE = Path(__file__).parents[2] / "docs" / "results.md"


def test_code_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for method, level in (("standalone", 0.6), ("fedgh", 0.8)):
        for seed in (0, 1):
            run = make_run(tmp_path / "made", method=method, seed=seed, level=level)
            (tmp_path / "runs").mkdir(exist_ok=True)
            run.rename(tmp_path / "runs" / f"{method}-seed{seed}")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    printed = capsys.readouterr().out
    assert "of the clients are better off" in printed
    final = json.loads(Path("runs/fedgh-seed0/summary.json").read_text())["client_accuracy"]
    assert str(sum(final) / len(final))[:6] in printed
    written = {
        "table.tex",
        "table.csv",
        "report.html",
        "one.html",
        "accuracy.pdf",
        "cka.pdf",
        "tsne.pdf",
        "target.svg",
    }
    assert written <= {file.name for file in tmp_path.iterdir()}


def test_every_kind_of_figure_is_named() -> None:
    text = PAGE.read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []
