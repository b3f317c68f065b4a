"""TensorBoard, MLflow and W&B contents, read back with their own readers where installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tracked_runs import Tracked, wandb_records


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything stays below a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
    monkeypatch.setenv("WANDB_SILENT", "true")


# -- TensorBoard ----------------------------------------------------------------------------------------------


def scalars(path: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_has_the_same_figures(tracked: Tracked):
    pytest.importorskip("tensorboard")
    run = tracked("tensorboard")
    assert scalars(run.path, "accuracy") == [(r["step"], pytest.approx(r["accuracy"])) for r in run.rounds]
    assert scalars(run.path, "final_accuracy") == [(2, pytest.approx(run.summary["final_accuracy"]))]


def test_tensorboard_of_a_resumed_run_has_every_step_once(tracked: Tracked):
    pytest.importorskip("tensorboard")
    tracked("tensorboard", rounds=3, stop_at=2)
    run = tracked("tensorboard", rounds=3, resume=True)
    assert scalars(run.path, "accuracy") == [(r["step"], pytest.approx(r["accuracy"])) for r in run.rounds]


# -- MLflow ---------------------------------------------------------------------------------------------------


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow with a database file of the test's own."""
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package)
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return mlflow


def mlflow_runs(mlflow: Any) -> list[Any]:
    client = mlflow.MlflowClient()
    return list(client.search_runs([client.get_experiment_by_name("potluck").experiment_id]))


def test_mlflow_has_parameters_metrics_and_the_end(mlflow: Any, tracked: Tracked):
    run = tracked("mlflow")
    (mlflow_run,) = mlflow_runs(mlflow)
    assert mlflow_run.info.status == "FINISHED"
    assert mlflow_run.info.run_name == run.path.name
    expected = {"method": "fedavg", "rounds": "2", "clients": "2", "seed": "0", "folder": str(run.path)}
    assert mlflow_run.data.params == expected
    history = mlflow.MlflowClient().get_metric_history(mlflow_run.info.run_id, "accuracy")
    assert [(point.step, point.value) for point in history] == [
        (r["step"], r["accuracy"]) for r in run.rounds
    ]
    assert mlflow_run.data.metrics["bytes_up"] == run.rounds[-1]["bytes_up"]
    assert mlflow_run.data.metrics["final_accuracy"] == run.summary["final_accuracy"]


def test_mlflow_of_a_resumed_run_is_one_run(mlflow: Any, tracked: Tracked):
    tracked("mlflow", rounds=3, stop_at=2)
    (stopped,) = mlflow_runs(mlflow)
    assert stopped.info.status == "KILLED"
    run = tracked("mlflow", rounds=3, resume=True)
    (mlflow_run,) = mlflow_runs(mlflow)
    assert mlflow_run.info.status == "FINISHED"
    history = mlflow.MlflowClient().get_metric_history(mlflow_run.info.run_id, "accuracy")
    assert {point.step: point.value for point in history} == {r["step"]: r["accuracy"] for r in run.rounds}


def test_mlflow_leaves_the_callers_own_run_alone(mlflow: Any, tracked: Tracked):
    with mlflow.start_run(run_name="mine") as own_run:
        tracked("mlflow")
        assert mlflow.active_run().info.run_id == own_run.info.run_id
        mlflow.log_metric("own", 1.0)
    assert mlflow.get_run(own_run.info.run_id).data.metrics == {"own": 1.0}


# -- Weights & Biases -----------------------------------------------------------------------------------------


def test_wandb_stays_offline_and_has_the_figures(tracked: Tracked):
    pytest.importorskip("wandb")
    run = tracked("wandb")
    runs, history = wandb_records(run.path)  # W&B names the folders of what it did not send `offline-run-…`
    assert {(each.project, each.display_name) for each in runs} == {("potluck", run.path.name)}
    steps = {row["_step"]: row for row in history}
    for record in run.rounds:
        assert steps[record["step"]]["accuracy"] == record["accuracy"]
        assert steps[record["step"]]["bytes_up"] == record["bytes_up"]
    assert steps[2]["final_accuracy"] == run.summary["final_accuracy"]


def test_wandb_of_a_resumed_run_has_one_id(tracked: Tracked):
    pytest.importorskip("wandb")
    tracked("wandb", rounds=3, stop_at=2)
    run = tracked("wandb", rounds=3, resume=True)
    runs, history = wandb_records(run.path)
    assert len({each.run_id for each in runs}) == 1
    assert {row["_step"]: row["accuracy"] for row in history} == {
        r["step"]: r["accuracy"] for r in run.rounds
    }
