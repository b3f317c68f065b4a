"""Trackers receive a run's figures, continue after resume, and cannot fail a run."""

from __future__ import annotations

import csv
import logging
import sys
from collections import Counter
from pathlib import Path

import pytest
from tracked_runs import Tracked

from potluck.cli import main
from potluck.core.errors import PotluckError
from potluck.trackers.builtin import CsvTracker


def rows_of(path: Path) -> list[tuple[int, str, float]]:
    with (path / "track.csv").open(encoding="utf-8") as file:
        return [(int(row["step"]), row["figure"], float(row["value"])) for row in csv.DictReader(file)]


def test_csv_has_a_row_per_step_and_figure(tracked: Tracked):
    run = tracked("csv")
    values = {(step, figure): value for step, figure, value in rows_of(run.path)}
    for record in run.rounds:
        assert values[record["step"], "accuracy"] == record["accuracy"]
        assert values[record["step"], "bytes_up"] == record["bytes_up"]
        assert values[record["step"], "failures"] == 0
    assert values[2, "final_accuracy"] == run.summary["final_accuracy"]


def test_csv_of_a_resumed_run_has_every_step_once(tracked: Tracked, tmp_path: Path):
    tracked("csv", rounds=3, stop_at=2)  # step 2 is in the file, but not in a checkpoint
    assert max(step for step, _, _ in rows_of(tmp_path / "run")) == 2
    run = tracked("csv", rounds=3, resume=True)
    rows = rows_of(run.path)
    assert [value for _, figure, value in rows if figure == "accuracy"] == [r["accuracy"] for r in run.rounds]
    assert max(Counter((step, figure) for step, figure, _ in rows).values()) == 1


def test_a_tracker_that_fails_costs_no_training(
    tracked: Tracked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def gone(self: CsvTracker, values: dict[str, float], step: int) -> None:
        raise ConnectionError("server went away\nand much more")

    monkeypatch.setattr(CsvTracker, "log_metrics", gone)
    with caplog.at_level(logging.WARNING, "potluck"):
        run = tracked("csv")
    assert len(run.rounds) == 2
    (warning,) = [record.getMessage() for record in caplog.records]  # once, not at every step
    assert "--track csv failed and is disabled (server went away);" in warning


def test_a_tracker_that_cannot_start_is_one_sentence(tracked: Tracked, monkeypatch: pytest.MonkeyPatch):
    def closed(self: CsvTracker, loop: object) -> None:
        raise ConnectionError("no server there")

    monkeypatch.setattr(CsvTracker, "open", closed)
    with pytest.raises(PotluckError, match="--track csv cannot start: no server there"):
        tracked("csv")


@pytest.mark.parametrize(
    ("name", "package"), [("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "tensorboard")]
)
def test_a_missing_package_is_one_sentence_and_leaves_no_folder(
    name: str,
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(
        sys, "argv", ["potluck", "run", "fedgh", "--track", name, "--out", str(tmp_path / "run")]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert f"pip install 'potluck[{name}]'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()  # the same command must work once the package is there


def test_an_unknown_name_is_one_sentence(tracked: Tracked):
    with pytest.raises(PotluckError, match="Unknown tracker 'tensorbord'. Did you mean 'tensorboard'"):
        tracked("tensorbord")
