"""MLflow: a run of the experiment `potluck`, wherever MLFLOW_TRACKING_URI points."""

from __future__ import annotations

from pathlib import Path

from potluck.core.callback import End
from potluck.core.loop import Loop
from potluck.trackers.base import Tracker, need


class MlflowTracker(Tracker):
    """Without a server MLflow keeps its own files; the run's settings are logged as parameters."""

    def __init__(self, path: Path, label: str) -> None:
        super().__init__(path, label)
        self._mlflow = need("mlflow", "mlflow")

    def on_start(self, loop: Loop) -> None:
        """Open the run and name what makes it this one."""
        self._mlflow.set_experiment("potluck")
        self._mlflow.start_run(run_name=self.label)
        self._mlflow.log_params(
            {
                "method": loop.method.name or type(loop.method).__name__,
                "rounds": loop.schedule.rounds,
                "clients": len(loop.task.clients),
                "seed": loop.task.seed,
                "folder": str(self.path),
            }
        )

    def show(self, values: dict[str, float], step: int) -> None:
        """All figures of a step at once."""
        self._mlflow.log_metrics(values, step=step)

    def on_end(self, end: End) -> None:
        """Close the run."""
        super().on_end(end)
        self._mlflow.end_run()
