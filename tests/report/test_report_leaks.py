"""Leak scores and reconstructed images in the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from potluck.analysis.leak import LeakFindings, LeakScore, Reconstruction
from potluck.core.errors import PotluckError
from potluck.report import write_report
from potluck.report.leaks import draw_pictures, inversion_figure
from support.synthetic_runs import make_run


def findings() -> LeakFindings:
    finding = LeakScore("is it <seen>?", 0.75, 0.5, "by hand", 4)
    first = Reconstruction(
        2, 7, 1, {"its mean picture": torch.zeros(1, 8, 8), "without it": torch.ones(1, 8, 8)}
    )
    second = Reconstruction(3, 7, 6, {"its mean picture": torch.rand(1, 8, 8)})
    return LeakFindings([finding], [first, second], ["Something was left out."])


def looked_at(tmp_path: Path) -> Path:
    run = make_run(tmp_path, method="fedproto", seed=3)
    stored = findings().stored()
    (run / "leaks.json").write_text(json.dumps(stored))
    draw_pictures(run, stored["pictures"])
    return run


def test_report_shows_scores_pictures_and_omissions(tmp_path: Path):
    page = write_report([looked_at(tmp_path)], tmp_path / "page.html").read_text()
    section = re.search(r'<section id="leaks".*?</section>', page, re.DOTALL)
    assert section
    assert "fedproto, seed 3" in section[0]
    assert '<th scope="row">is it &lt;seen&gt;?</th><td>0.750</td><td>0.500</td><td>4</td>' in section[0]
    assert "Something was left out." in section[0]
    assert section[0].count('src="data:image/png;base64,') == 1
    assert 'href="#leaks"' in page


def test_run_without_leak_analysis_has_no_section(tmp_path: Path):
    page = write_report([make_run(tmp_path, method="fedproto", seed=0)], tmp_path / "page.html").read_text()
    assert "#leaks" not in page
    assert "{{" not in page.split("<script")[0]


def test_a_damaged_file_is_one_sentence(tmp_path: Path):
    run = looked_at(tmp_path)
    for text in ("{", "[]", '{"scores": [{}], "skipped": []}'):
        (run / "leaks.json").write_text(text)
        with pytest.raises(PotluckError, match="cannot be read; write it again with potluck leak"):
            write_report([run], tmp_path / "page.html")


def test_a_column_for_each_class_and_a_row_for_each_kind_of_picture():
    figure = inversion_figure(findings().stored()["pictures"])
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["client 2\nclass 7\n1 sample", "client 3\nclass 7\n6 samples"]
    drawn = [bool(axes.images) for axes in figure.axes]
    assert drawn == [True, True, True, False]  # the second has nothing that was made without the extractor


def test_pictures_of_an_earlier_look_go(tmp_path: Path):
    run = looked_at(tmp_path)
    assert (run / "leaks.png").is_file()
    first = (run / "leaks.png").read_bytes()
    draw_pictures(run, findings().stored()["pictures"][:1])
    assert (run / "leaks.png").read_bytes() != first
    assert draw_pictures(run, []) is None
    assert not (run / "leaks.png").exists()


def test_the_command_puts_it_all_into_the_run_folder(potluck: Any, tmp_path: Path):
    words = ("--clients", "3", "--rounds", "1", "--models", "small-mlp", "--set", "data.limit=150", "-q")
    potluck("run", "fedproto", *words, "--engine", "serial", "--keep-answers", "--out", "run")
    code, out, _ = potluck("leak", "run")
    assert code == 0
    assert "Pictures: run/leaks.png" in out
    assert "Report: run/report.html" in out
    stored = json.loads((tmp_path / "run" / "leaks.json").read_text())
    assert stored["pictures"]
    assert "inverted with the extractor" in (tmp_path / "run" / "report.html").read_text()
