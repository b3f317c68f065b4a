"""Advice follows from rows, or says that there is no evidence."""

from __future__ import annotations

from pathlib import Path

from generate.advice import hospital, recommendations
from generate.benchmark.gain import gains, page
from potluck.suites.store import Results
from potluck.suites.suite import find_suite
from tests.support.suites import add_rows

ALONE = [0.5, 0.55, 0.6, 0.52, 0.58]


def stored(
    folder: Path, points: dict[str, list[float]], task: str = "digits-labels", suite: str = "cpu"
) -> Results:
    """Standalone training, and methods by their gains over it on five seeds."""
    results = Results.read(folder, suite)
    add_rows(results, task, "standalone", ALONE)
    for method, own in points.items():
        add_rows(results, task, method, [base + gain for base, gain in zip(ALONE, own, strict=True)])
    results.write()
    return results


def test_without_rows_nothing_is_recommended(tmp_path: Path):
    assert recommendations(tmp_path) == "No rows are stored, so no method is recommended."
    assert hospital(tmp_path).count("no rows say what that brings") == 4


def test_a_method_is_recommended_where_it_is_ahead(tmp_path: Path):
    stored(tmp_path, {"fedgh": [0.05, 0.052, 0.048, 0.051, 0.049], "fedhe": [0.2, -0.1, 0.15, -0.12, 0.05]})
    text = recommendations(tmp_path)
    assert "Ahead of training alone on at least one task: [fedgh](methods/fedgh.md)." in " ".join(
        text.split()
    )
    assert "| [fedgh](methods/fedgh.md) | 1 | 0 | 0 | 0 | Digits, label skew +5.0 [+4.8, +5.2] |" in text
    assert "| [fedhe](methods/fedhe.md) | 0 | 0 | 0 | 1 |" in text
    text = hospital(tmp_path)
    assert "without public samples, ahead: fedgh on *Digits, label skew* (+5.0 [+4.8, +5.2])." in text
    assert "on such networks, no rows say what that brings" in text


def test_rows_on_frozen_networks_are_evidence_too(tmp_path: Path):
    gains_of_tasks = {
        "cifar10-light": [0.05, 0.052, 0.048, 0.051, 0.049],
        "cifar10-labels": [0.0, 0.2, -0.2, 0.1, -0.1],
    }
    for task, points in gains_of_tasks.items():
        stored(tmp_path, {"fedavg": points}, task, "pretrained")
    assert "| [fedavg](methods/fedavg.md) | 1 | 0 | 0 | 1 |" in recommendations(tmp_path)
    assert (
        "on such networks, ahead: fedavg on *CIFAR-10, features differ* (+5.0 [+4.8, +5.2]); none on *CIFAR-10, classes differ*"
        in hospital(tmp_path)
    )


def test_hospital_advice_has_the_gain_of_each_step(tmp_path: Path):
    stored(
        tmp_path,
        {"fedgh": [0.01, -0.01, 0.01, -0.01, 0.0], "standalone-public": [0.07] * 5, "ridge": [-0.02] * 5},
    )
    text = hospital(tmp_path)
    assert (
        "Networks trained alone are +2.0 [+2.0, +2.0] points over ridge regression on *Digits, label skew*"
        in text
    )
    assert "train on them too**: +7.0 [+7.0, +7.0] points over training alone" in text
    assert "Pool the data where the law lets you**: no rows say" in text
    assert "none of the methods measured is ahead (a gain of " in text


def test_sizes_of_training_sets_are_columns(tmp_path: Path):
    suite = find_suite("gain")
    results = stored(tmp_path, {"fedgh": [0.01] * 5}, "fashion-10-two classes", "gain")
    assert list(gains(suite, results)) == ["two classes"]
    assert "| two classes | 10 |" in page(suite, results)
    assert "| fedgh | +1.0 [+1.0, +1.0] |" in page(suite, results)
    assert "Not run yet" in page(suite, Results.read(tmp_path / "none", "gain"))


def test_the_study_of_sizes_keeps_clients_tests_and_steps():
    """About twenty steps per round at every size, and the same hundred test rows of five hundred."""
    suite = find_suite("gain")
    for task in suite.tasks:
        experiment = suite.experiment(task, "fedgh", 0, suite.candidates(task, "fedgh")[0])
        train, validation, test = (5 * int(part) for part in experiment.data.split.split(":"))  # of 500 rows
        assert train + validation + test == 500
        batches = -(-train // experiment.training.batch_size)
        assert 18 <= batches * experiment.training.epochs <= 21
        assert (train, test) == (int(task.axes["samples"]), 100)
