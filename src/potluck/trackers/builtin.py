"""The built-in trackers: CSV, TensorBoard, MLflow, and Weights & Biases."""

from __future__ import annotations

import csv
import io
import os
import time
from typing import Any

from potluck.core.files import csv_cell
from potluck.loop.loop import Loop
from potluck.runs.folder import write_atomic
from potluck.trackers.base import Tracker, import_package, run_facts

TRACK_FILE = "track.csv"
HEADINGS = ["step", "figure", "value"]
MLFLOW_RUN = ".mlflow-run"  # in the run's folder, so that a resumed run continues the same MLflow run
WANDB_RUN = ".wandb-run"  # likewise: both parts of a resumed run are one W&B run when synced


class CsvTracker(Tracker):
    """Write one row per metric and server step, `step,figure,value`, to `track.csv` in the run's folder."""

    name = "csv"

    def open(self, loop: Loop) -> None:
        """Keep the rows up to the resumed step; later ones are written again."""
        file, lines = self.path / TRACK_FILE, [HEADINGS]
        if file.exists():
            with file.open(newline="", encoding="utf-8") as old:
                rows = [row for row in csv.reader(old) if len(row) == 3 and row[0].isdigit()]
            lines += [row for row in rows if int(row[0]) <= loop.progress.step and row[1] != "final_accuracy"]
        text = io.StringIO()
        csv.writer(text).writerows(lines)
        write_atomic(file, text.getvalue())

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        """Append a row per metric."""
        with (self.path / TRACK_FILE).open("a", newline="", encoding="utf-8") as out:
            csv.writer(out).writerows([step, csv_cell(name), value] for name, value in values.items())


class TensorBoardTracker(Tracker):
    """Write event files to `tensorboard/` in the run's folder."""

    name = "tensorboard"
    _writer: Any

    @classmethod
    def check(cls) -> None:
        """Require TensorBoard and torch's writer."""
        import_package("tensorboard", "tensorboard")
        import_package("torch.utils.tensorboard", "tensorboard")

    def open(self, loop: Loop) -> None:
        """Open a new event file; it hides steps that an earlier process wrote after the last checkpoint."""
        board, step = import_package("torch.utils.tensorboard", "tensorboard"), loop.progress.step
        self._writer = board.SummaryWriter(
            str(self.path / "tensorboard"), purge_step=step + 1 if step else None
        )

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        """Write one scalar per metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        """Close the event file."""
        self._writer.close()


class MlflowTracker(Tracker):
    """Log to a run of the experiment `potluck` at MLFLOW_TRACKING_URI, through a separate client.

    A run that the caller has open in this process is not affected.
    """

    name = "mlflow"
    _client: Any
    _run: str

    @classmethod
    def check(cls) -> None:
        """Require MLflow, and the packages of its database file where there is no server."""
        mlflow = import_package("mlflow", "mlflow")
        if str(mlflow.get_tracking_uri()).startswith("sqlite:"):
            import_package("sqlalchemy", "mlflow")
            import_package("alembic", "mlflow")

    def open(self, loop: Loop) -> None:
        """Continue the recorded run, or create one with the run's parameters."""
        self._client = import_package("mlflow", "mlflow").MlflowClient()
        if loop.progress.step == 0 or not self._continue():
            self._begin(loop)

    def _continue(self) -> bool:
        try:
            run = (self.path / MLFLOW_RUN).read_text(encoding="utf-8")
            self._client.update_run(run, status="RUNNING")
        except (OSError, import_package("mlflow", "mlflow").MlflowException):
            return False  # tracked by another server, or not tracked
        self._run = run
        return True

    def _begin(self, loop: Loop) -> None:
        client, name = self._client, os.environ.get("MLFLOW_EXPERIMENT_NAME", "potluck")
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        self._run = client.create_run(number, run_name=self.label).info.run_id
        for key, value in {**run_facts(loop), "folder": str(self.path.resolve())}.items():
            client.log_param(self._run, key, value)
        (self.path / MLFLOW_RUN).write_text(self._run, encoding="utf-8")

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        """Log all metrics of a step in one call."""
        metric, now = import_package("mlflow.entities", "mlflow").Metric, int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[metric(key, v, now, step) for key, v in values.items()])

    def close(self, *, finished: bool) -> None:
        """Set the status of the run."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


class WandbTracker(Tracker):
    """Keep W&B files in the run's folder, offline unless WANDB_MODE is set; `wandb sync` sends them."""

    name = "wandb"
    _run: Any

    @classmethod
    def check(cls) -> None:
        """Require wandb."""
        import_package("wandb", "wandb")

    def open(self, loop: Loop) -> None:
        """Open the run with its parameters; a run that the caller has open is not affected."""
        wandb, note = import_package("wandb", "wandb"), self.path / WANDB_RUN
        recorded = note.read_text(encoding="utf-8") if loop.progress.step and note.exists() else None
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "potluck"),
            name=self.label,
            dir=str(self.path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            id=recorded,
            resume="allow" if recorded else None,
            reinit="create_new",
            config=run_facts(loop),
        )
        note.write_text(str(self._run.id), encoding="utf-8")

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        """Log all metrics of a step in one call."""
        self._run.log(values, step=step)

    def close(self, *, finished: bool) -> None:
        """Finish the run; an interrupted run is marked as failed."""
        self._run.finish(exit_code=0 if finished else 1)
