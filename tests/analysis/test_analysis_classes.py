"""Confusion matrices and calibration of a run: from rows written by hand, and from a real run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import potluck
from potluck.analysis.clients import calibration, class_accuracy, confusion_matrix
from potluck.core.errors import PotluckError
from potluck.runs.read import read_run
from support.tiny import tiny

EMPTY = [0, 0, 0.0]


def by_hand(path: Path) -> potluck.Run:
    rows = [
        {
            "client": 0,
            "final": True,
            "confusion": [[0, 0, 3], [0, 1, 1]],
            "calibration": [[4, 3, 2.0], EMPTY],
        },
        {"client": 1, "final": True, "confusion": [[1, 1, 2]], "calibration": [EMPTY, [2, 2, 1.8]]},
        {"client": 1, "final": False, "confusion": [[1, 0, 9]]},
    ]
    path.mkdir()
    (path / "rounds.jsonl").write_text("")
    (path / "clients.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_run(path)


def test_by_hand(tmp_path: Path):
    run = by_hand(tmp_path / "run")
    np.testing.assert_array_equal(confusion_matrix(run), [[3, 1], [0, 2]])
    np.testing.assert_array_equal(confusion_matrix(run, client=1), [[0, 0], [0, 2]])
    np.testing.assert_allclose(class_accuracy(run), [0.75, 1.0])
    np.testing.assert_allclose(class_accuracy(run, client=1), [np.nan, 1.0])
    together = calibration(run)
    np.testing.assert_allclose(together.edges, [0, 0.5, 1])
    np.testing.assert_allclose(together.confidence, [0.5, 0.9])
    np.testing.assert_allclose(together.accuracy, [0.75, 1.0])
    assert together.error == pytest.approx((4 * 0.25 + 2 * 0.1) / 6)
    assert calibration(run, client=0).error == pytest.approx(0.25)


def test_a_run_that_has_none_is_a_sentence(tmp_path: Path):
    run = by_hand(tmp_path / "run")
    with pytest.raises(PotluckError, match="'run' has no confusion matrix of client 7"):
        confusion_matrix(run, client=7)


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_a_run_adds_up(tmp_path: Path, engine: str):
    run = potluck.run(
        "standalone", federation=tiny(3), rounds=1, engine=engine, workers=2, out=tmp_path / engine
    )
    matrix, summary = confusion_matrix(run), run.summary
    final = [row for row in run.clients if row["final"]]
    assert matrix.sum() == sum(row["samples"] for row in final) == 27
    assert summary["class_samples"] == matrix.sum(axis=1).tolist()
    assert summary["class_correct"] == np.diagonal(matrix).tolist()
    for row in final:
        client_matrix = confusion_matrix(run, row["client"])
        assert np.trace(client_matrix) / client_matrix.sum() == pytest.approx(row["accuracy"])
        assert calibration(run, row["client"]).error == pytest.approx(row["calibration_error"])
    assert np.sum(summary["calibration"], axis=0)[:2].tolist() == [27, np.trace(matrix)]
    for key, field in (
        ("macro_f1", "macro_f1"),
        ("calibration_error", "calibration_error"),
        ("loss", "loss"),
    ):
        assert summary[f"final_{key}"] == pytest.approx(np.mean([row[field] for row in final]))
    assert not any("confusion" in row for row in run.clients if not row["final"])
