"""Trackers see the figures of a run. CSV and TensorBoard are real; MLflow and W&B are stand-ins with their calls."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import potluck
from potluck.core.errors import PotluckError
from tiny import tiny


def tracked(tmp_path: Path, name: str) -> potluck.Run:
    return potluck.run(
        "fedavg", federation=tiny(2), rounds=2, engine="serial", out=tmp_path / "run", track=name
    )


def test_csv_has_a_row_per_step_and_figure(tmp_path: Path):
    run = tracked(tmp_path, "csv")
    with (run.path / "track.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {(int(row["step"]), row["figure"]): float(row["value"]) for row in rows}
    for record in run.rounds:
        assert found[record["step"], "accuracy"] == record["accuracy"]
        assert found[record["step"], "bytes_up"] == record["bytes_up"]
        assert found[record["step"], "failures"] == 0
    assert found[2, "final_accuracy"] == run.summary["final_accuracy"]


def test_tensorboard_has_the_same_figures(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tracked(tmp_path, "tensorboard")
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    seen = [(event.step, event.value) for event in events.Scalars("accuracy")]
    assert seen == [(row["step"], pytest.approx(row["accuracy"])) for row in run.rounds]


class Calls(ModuleType):
    """A module that notes every call."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.made.append((name, arguments, named))
            return self

        return call


def test_mlflow_is_told_parameters_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = Calls("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    run = tracked(tmp_path, "mlflow")
    names = [name for name, _, _ in fake.made]
    assert names == ["set_experiment", "start_run", "log_params", *["log_metrics"] * 3, "end_run"]
    assert fake.made[2][1][0]["method"] == "fedavg"
    assert fake.made[3][1][0]["accuracy"] == run.rounds[0]["accuracy"]
    assert [named["step"] for name, _, named in fake.made if name == "log_metrics"] == [1, 2, 2]


def test_wandb_stays_offline_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = Calls("wandb")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = tracked(tmp_path, "wandb")
    assert [name for name, _, _ in fake.made] == ["init", "log", "log", "log", "finish"]
    assert fake.made[0][2]["mode"] == "offline"
    assert fake.made[0][2]["dir"] == str(run.path)


def test_a_missing_package_or_name_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(PotluckError, match=r"pip install 'potluck\[wandb\]'"):
        tracked(tmp_path, "wandb")
    with pytest.raises(PotluckError, match="Unknown tracker 'tensorbord'. Did you mean 'tensorboard'"):
        potluck.run("fedavg", federation=tiny(2), rounds=1, out=tmp_path / "b", track="tensorbord")
