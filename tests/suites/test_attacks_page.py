"""The page on attacks: honest clients, and no recommended rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from generate.benchmark import page_text, write_page
from generate.benchmark.attacks import unsteady_cases
from potluck.suites.store import Results
from potluck.suites.suite import find_suite
from tests.support.suites import make_row


def stored(tmp_path: Path) -> Results:
    """Two clients of four attack. The mean falls from 80 to 20, the median from 79 to 75."""
    stored_results = Results(tmp_path, "attacks")

    def add(attack: str, rule: str, honest: float, success: float | None) -> None:
        row = replace(make_row(f"digits-{attack}-{rule}", "fedgh", 0, 0.0), settings="{}")
        details: dict[str, Any] = {"clients": [honest - 0.01, 0.0, honest + 0.01, 1.0]}
        if success is not None:
            details["attack"] = {"clients": [1, 3], "honest_accuracy": honest, "success": success}
        stored_results.rows.append(row)
        stored_results.details[row.experiment] = details

    for rule, calm, struck in (("mean", 0.80, 0.20), ("median", 0.79, 0.75), ("krum", 0.60, 0.59)):
        add("nobody", rule, calm, None)
        add("sign-flip", rule, struck, 1 - struck)
        add("backdoor", rule, calm, 0.3)
    return stored_results


def test_attacks_page_has_the_accuracy_of_each_rule_and_recommends_none(tmp_path: Path):
    text = page_text(find_suite("attacks"), stored(tmp_path))
    assert "| rule | no attack | sign-flip | backdoor |" in text
    assert (
        "| `mean` | 80.0 | 20.0 | 80.0 / 30.0 |" in text
    )  # without attack, clients 1 and 3 do not count either
    assert text.index("**Weak evidence.**") < text.index("| rule |")
    assert "`median`**" not in text  # no rule is marked as the best
    assert "### fd" not in text


def test_the_picture_is_drawn(tmp_path: Path):
    write_page(find_suite("attacks"), stored(tmp_path), tmp_path / "attacks.md")
    assert "geometric-median" in (tmp_path / "figures" / "attacks-digits.svg").read_text()


def test_two_seeds_are_a_mean_and_a_spread(tmp_path: Path):
    grid_results = stored(tmp_path)
    row = replace(make_row("digits-sign-flip-mean", "fedgh", 1, 0.0), settings="{}")
    grid_results.rows.append(row)
    attack = {"clients": [0, 2], "honest_accuracy": 0.40, "success": 0.6}
    grid_results.details[row.experiment] = {"clients": [], "attack": attack}
    text = page_text(find_suite("attacks"), grid_results)
    assert "| `mean` | 80.0 | 30.0 ± 14.1 | 80.0 / 30.0 |" in text  # 20 and 40


def test_cases_with_another_best_rule_for_each_seed_are_counted(tmp_path: Path):
    """For seed 0 the median is best under both attacks; for seed 1 the mean is, under one of them."""
    attack_results = Results(tmp_path, "attacks")
    honest = {"sign-flip": ((0.2, 0.7), (0.8, 0.7)), "label-flip": ((0.2, 0.7), (0.2, 0.7))}
    for attack, seeds in honest.items():
        for seed, pair in enumerate(seeds):
            for rule, value in zip(("mean", "median"), pair, strict=True):
                row = make_row(f"digits-{attack}-{rule}", "fedgh", seed, 0.0)
                attack_results.rows.append(row)
                details = {"clients": [1], "honest_accuracy": value, "success": 0.0}
                attack_results.details[row.experiment] = {"clients": [value, 0.0], "attack": details}
    assert unsteady_cases(find_suite("attacks"), attack_results) == (1, 2)
    text = " ".join(page_text(find_suite("attacks"), attack_results).split())
    assert "**Weak evidence.** 2 seeds" in text
    assert "In 1 of 2 cases" in text
    assert "Without ±" not in text  # every cell has two runs
