"""Default settings: no method far below standalone training without a reason."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from generate.benchmark.defaults import BASELINE_TASK, KNOWN_WEAK, LEFT_OUT, MARGIN, lines, page
from potluck.methods import METHODS
from potluck.suites.runner import measure
from potluck.suites.statistics import REFERENCE
from potluck.suites.store import Results
from potluck.suites.suite import find_suite
from tests.support.suites import make_row

ROOT = Path(__file__).parents[2]
SUITE = find_suite("defaults")


def test_suite_has_every_method():
    assert set(SUITE.task("digits").methods) == set(METHODS) - LEFT_OUT
    assert {SUITE.task(name).methods for name in BASELINE_TASK.values()} == {(REFERENCE,)}


def test_a_method_is_compared_with_standalone_training_of_the_same_networks(tmp_path: Path):
    rows = [
        make_row("digits", "standalone", 0, 0.9),
        make_row("digits-width", "standalone", 0, 0.7),
        make_row("digits", "fedgh", 0, 0.88),
        make_row("digits", "fedgh", 1, 0.1),  # nothing to compare with
        make_row("digits", "fd", 0, 0.86),
        make_row("digits", "heterofl", 0, 0.69),
    ]
    results = Results(tmp_path, "defaults", rows=rows)
    gains = {line.method: (round(line.gain, 6), line.sensible) for line in lines(SUITE, results)}
    assert gains == {
        "standalone": (0.0, True),
        "fedgh": (-0.02, True),
        "fd": (-0.04, False),
        "heterofl": (-0.01, True),
    }
    text = page(SUITE, results)
    assert "| fedgh | 88.0 | -2.0 |  | 1 | 10 |" in text
    assert "More than 3 points below standalone training: fd (not explained)." in text
    assert text.index("With nothing tuned") < text.index("| method |") < text.index("## Provenance")
    for row in rows:
        results.details[row.experiment] = {"clients": [row.accuracy, row.accuracy, 0.9, 0.9]}
    text = page(SUITE, results)
    assert "| fedgh | 88.0 | -2.0 | 50% | 1 | 10 |" in text
    assert "| standalone | 90.0 |  |  | 1 | 10 |" in text
    better = Results(tmp_path, "defaults", rows=[replace(row, final_accuracy=0.9) for row in rows])
    assert "No method ends more than 3 points below standalone training." in page(SUITE, better)


def test_stored_results_are_of_all_methods_and_sensible():
    stored = Results.read(ROOT / "results", "defaults")
    if not stored.rows:
        pytest.skip("no results are stored")
    summaries = lines(SUITE, stored)
    missing = set(METHODS) - LEFT_OUT - {line.method for line in summaries}
    text = page(SUITE, stored)
    assert all(f"`{name}`" in text.partition("Not run yet: ")[2] for name in missing)
    assert {line.method for line in summaries if not line.sensible} <= set(KNOWN_WEAK)


@functools.cache
def trained(task: str, method: str) -> tuple[float, ...]:
    selected = SUITE.task(task)
    settings = SUITE.candidates(selected, method)[0]
    texts = [SUITE.work(selected, method, seed, settings).text for seed in SUITE.seeds]
    return tuple(measure(text)["row"]["final_accuracy"] for text in texts)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", sorted(set(METHODS) - LEFT_OUT))
def test_default_settings_are_not_far_below_standalone_training(method: str):
    accuracies, alone = trained("digits", method), trained(BASELINE_TASK.get(method, "digits"), REFERENCE)
    gain = sum(accuracy - reference for accuracy, reference in zip(accuracies, alone, strict=True)) / len(
        alone
    )
    assert gain >= -MARGIN or method in KNOWN_WEAK, f"{100 * gain:+.1f} points against standalone training"
