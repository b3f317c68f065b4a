"""What the suite of safeguards stores of a run, and what is read from it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import potluck
from potluck.suites.safeguard import outcomes, safeguard_details, stored_outcomes
from potluck.suites.suite import find_suite


def test_stored_counts_are_those_of_the_run_and_leave_attackers_out(tmp_path: Path):
    finished = potluck.run(
        "fedproto", clients=4, rounds=2, epochs=1, data={"name": "digits", "limit": 240, "split": "2:1:3"},
        models="small-mlp,small-wide", engine="serial", safeguard="ensemble", out=tmp_path / "run",
    )  # fmt: skip
    stored = json.loads(json.dumps(safeguard_details(finished)))
    assert list(stored_outcomes(stored)) == outcomes(finished)
    rows = {row["client"]: row for row in finished.clients if row["final"]}
    first = {row["client"]: row for row in finished.clients if row["round"] == 1}
    assert len(rows) == 4
    for outcome in outcomes(finished):
        row, early = rows[outcome.client], first[outcome.client]
        test, validation = outcome.test, outcome.validation
        assert outcome.alone / test == row["accuracy_alone"]
        assert (outcome.alone + outcome.gained - outcome.lost) / test == pytest.approx(
            row["accuracy_federated"]
        )
        assert (outcome.alone + outcome.used_gained - outcome.used_lost) / test == pytest.approx(
            row["accuracy"]
        )
        assert outcome.early_alone / validation == early["accuracy_validation_alone"]
        federated = outcome.early_alone + outcome.early_gained - outcome.early_lost
        assert federated / validation == pytest.approx(early["accuracy_validation_federated"])
        counts = finished.summary["class_counts"][outcome.client]
        assert (outcome.train, outcome.largest_class) == (sum(counts), max(counts))
        assert outcome.classes == sum(count > 0 for count in counts)
    stored["attack"] = {"clients": [1, 3]}
    assert [outcome.client for outcome in stored_outcomes(stored)] == [0, 2]


def test_run_without_a_safeguard_stores_nothing_of_it(tmp_path: Path):
    finished = potluck.run(
        "fedgh", clients=2, rounds=1, epochs=1, data={"name": "digits", "limit": 60}, engine="serial",
        out=tmp_path / "run",
    )  # fmt: skip
    assert safeguard_details(finished) == {}


def test_every_task_of_the_suite_trains_with_an_ensemble():
    suite = find_suite("safeguard")
    assert len({method for task in suite.tasks for method in task.methods}) >= 12
    for task in suite.tasks:
        assert suite.experiment(task, task.methods[0], 0, {}).safeguard.mode == "ensemble"
