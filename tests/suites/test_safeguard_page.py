"""The page on safeguards: what clients would have used with each mode, from stored counts of one run."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from generate.benchmark import safeguard as made
from generate.text import find_block
from potluck.suites.provenance import row_origin
from potluck.suites.safeguard import ClientOutcome
from potluck.suites.store import Results, Row
from potluck.suites.suite import find_suite


def outcome(client: int = 0, **counts: Any) -> ClientOutcome:
    """A client with 100 test samples, of which its standalone model gets 50 right."""
    details: dict[str, Any] = {
        "train": 20, "classes": 5, "largest_class": 8, "validation": 20, "test": 100, "alone": 50, "gained": 0,
        "lost": 0, "weight": 0.5, "used_gained": 0, "used_lost": 0, "validation_gained": 0, "validation_lost": 0,
        "early_alone": 5, "early_gained": 0, "early_lost": 0,
    }  # fmt: skip
    return ClientOutcome(client, **(details | counts))


def stored(folder: Path, runs: dict[tuple[str, str], list[ClientOutcome]], attackers: list[int]) -> Results:
    results = Results(folder, "safeguard")
    for number, ((task, method), clients) in enumerate(runs.items()):
        values = dict.fromkeys((name for name in Row.__dataclass_fields__), 0.0)
        digest = f"digest-{number}"
        identity = {
            "task": task,
            "method": method,
            "seed": 0,
            "settings": "{}",
            "experiment": digest,
            "command": "",
        }
        results.rows.append(Row(**{**values, **identity, **row_origin(), "commit": "aaaa"}))
        results.details[digest] = {
            "safeguard": {
                "mode": "ensemble",
                "flops": [3.0, 1.0],
                "clients": [list(astuple(client)) for client in clients],
            },
            **({"attack": {"clients": attackers}} if task.startswith("attacked") else {}),
        }
    return results


def test_modes_are_read_from_the_counts_of_one_run():
    """Five gains without a loss on validation samples are what `select` needs; `off` uses the federated model."""
    counts = outcome(gained=9, lost=2, used_gained=6, used_lost=1, validation_gained=4)
    assert made.used_counts("off", counts) == (9, 2)
    assert made.used_counts("select", counts) == (0, 0)
    assert made.used_counts("ensemble", counts) == (6, 1)
    assert made.used_counts("select", outcome(gained=9, lost=2, validation_gained=5)) == (9, 2)


def test_evidence_counts_losses_gains_kept_compute_and_honest_clients(tmp_path: Path):
    losing = outcome(gained=0, lost=30, used_gained=1, used_lost=3)
    gaining = outcome(1, gained=20, used_gained=15, validation_gained=9)
    results = stored(
        tmp_path,
        {
            ("digits-skewed", "fedavg"): [losing, losing],
            ("digits-skewed", "fedgh"): [gaining, gaining],
            ("attacked-sign-flip", "fedavg"): [losing, outcome(3, lost=90, used_lost=90)],
        },
        attackers=[3],
    )
    text = made.evidence(find_suite("safeguard"), results)
    assert "| Digits, unequal shares | off | 4 | -5.0 | 50% | 2 (50.0%) | 30.0 |" in text
    assert "|  | select | 4 | +10.0 | 0% | 0 (0.0%) | 0.0 |" in text
    assert "|  | ensemble | 4 | +6.5 | 50% | 0 (0.0%) | 2.0 |" in text
    assert "`select` keeps 100% of the mean gain in the 1 pairs" in text
    assert "the mean gain is +0.0 points (off: -30.0)" in text
    assert "`ensemble` keeps 75% of the mean gain" in text
    assert "adds 50% to 50% (median 50%)" in text
    assert "more than 0.0 points below alone with `select`, 2.0 with `ensemble`, and 30.0 without" in text


def test_page_equals_the_one_generated_from_stored_rows():
    suite, text = find_suite("safeguard"), (made.DOCS / "safeguard.md").read_text(encoding="utf-8")
    results = Results.read(made.DOCS.parent / "results", suite.name)
    assert made.page(suite, results) == text
    for name in ("evidence", "worth-it"):
        assert find_block(text, name)
    for picture in ("safeguard.svg", "worth-it.svg"):
        assert (made.DOCS / "figures" / picture).exists()


def test_largest_loss_of_clients_that_gain_is_zero():
    assert made.largest_loss([made.Used("fedgh", 3, 1, 10)]) == 0
    assert made.largest_loss([made.Used("fedgh", 0, 1, 10), made.Used("fedgh", 0, 3, 10)]) == pytest.approx(
        30
    )
