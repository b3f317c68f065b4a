"""MLflow: a run of the experiment `potluck`, wherever MLFLOW_TRACKING_URI points."""

from __future__ import annotations

import os
import time
from typing import Any

from potluck.loop.loop import Loop
from potluck.trackers.base import Tracker, facts, need

RUN_ID = ".mlflow-run"  # in the run's folder, so that a resumed run goes on in the same place


class MlflowTracker(Tracker):
    """Talks through a client of its own: a run that the caller has open in this process is not touched."""

    name = "mlflow"
    _client: Any
    _run: str

    @classmethod
    def check(cls) -> None:
        """Without a server MLflow keeps a database file, for which it needs two packages more."""
        mlflow = need("mlflow", "mlflow")
        if str(mlflow.get_tracking_uri()).startswith("sqlite:"):
            need("sqlalchemy", "mlflow")
            need("alembic", "mlflow")

    def open(self, loop: Loop) -> None:
        """Go on with the run on record, or make one and name what makes it this one."""
        self._client = need("mlflow", "mlflow").MlflowClient()
        if loop.progress.step == 0 or not self._go_on():
            self._begin(loop)

    def _go_on(self) -> bool:
        try:
            run = (self.path / RUN_ID).read_text(encoding="utf-8")
            self._client.update_run(run, status="RUNNING")
        except (OSError, need("mlflow", "mlflow").MlflowException):
            return False  # it was tracked elsewhere, or not at all
        self._run = run
        return True

    def _begin(self, loop: Loop) -> None:
        client, name = self._client, os.environ.get("MLFLOW_EXPERIMENT_NAME", "potluck")
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        self._run = client.create_run(number, run_name=self.label).info.run_id
        for key, value in {**facts(loop), "folder": str(self.path.resolve())}.items():
            client.log_param(self._run, key, value)
        (self.path / RUN_ID).write_text(self._run, encoding="utf-8")

    def show(self, values: dict[str, float], step: int) -> None:
        """All figures of a step at once."""
        metric, now = need("mlflow.entities", "mlflow").Metric, int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[metric(key, v, now, step) for key, v in values.items()])

    def close(self, *, finished: bool) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")
