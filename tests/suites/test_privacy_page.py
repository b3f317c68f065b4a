"""The page on privacy and accuracy: curves by spent ε, and methods above standalone training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from generate.benchmark import page_text, write_page
from potluck.core.supports import holds
from potluck.suites.store import Results
from potluck.suites.suite import find_suite
from tests.support.suites import make_row


def stored(tmp_path: Path) -> Results:
    """Alone 70 ± 1.4; fedavg 60 at ε = 1, 75 at ε = 10 and 80 without noise; pfedafm never above."""
    stored_results = Results(tmp_path, "privacy")

    def add(task: str, method: str, accuracy: float, epsilon: float | None, noise: float | None) -> None:
        for seed, moved in ((0, -0.01), (1, 0.01)):
            row = replace(make_row(task, method, seed, 0.0), final_accuracy=accuracy + moved, settings="{}")
            stored_results.rows.append(row)
            spent = {} if noise is None else {"privacy": {"epsilon": epsilon, "noise_multiplier": noise}}
            stored_results.details[row.experiment] = {"clients": [accuracy, 0.6], **spent}

    add("plain", "standalone", 0.70, None, None)
    add("plain", "fedavg", 0.80, None, None)
    add("sgd-1", "fedavg", 0.60, 0.98, 4.5)
    add("sgd-10", "fedavg", 0.75, 9.7, 1.0)
    add("twice-1", "pfedafm", 0.71, 0.95, 6.0)
    return stored_results


def test_table_has_the_spent_budget_and_compares_nothing(tmp_path: Path):
    text = page_text(find_suite("privacy"), stored(tmp_path))
    assert "| standalone | no promise |  | 70.0 ± 1.4 |  | 2 |" in text
    order = [
        "| fedavg | 1.0 | 4.5 | 60.0 ± 1.4 | 50% | 2 |",
        "| fedavg | 9.7 | 1 | 75.0 ± 1.4 | 0% | 2 |",
        "| fedavg | no promise |",
    ]
    assert [text.index(line) for line in order] == sorted(text.index(line) for line in order)
    assert text.index("**Weak evidence.**") < text.index("| method |")
    assert "above training alone" not in text


def test_the_picture_is_drawn(tmp_path: Path):
    write_page(find_suite("privacy"), stored(tmp_path), tmp_path / "privacy-accuracy.md")
    assert "standalone, no noise" in (tmp_path / "figures" / "privacy-accuracy.svg").read_text()


def test_every_run_of_the_suite_is_one_that_can_be_protected():
    """The suite asks for the record unit, and for settings under which the methods are guarded."""
    suite = find_suite("privacy")
    for task in suite.tasks:
        for method in task.methods:
            experiment = suite.experiment(task, method, 0, suite.candidates(task, method)[0])
            assert experiment.privacy.protects_records == (task.name != "plain")
            method = experiment.build_method()
            assert task.name == "plain" or holds(method.supports.row_privacy, method)
