"""Copy a run's metrics to CSV, TensorBoard, MLflow or Weights & Biases by callbacks.

The run folder contains all metrics already; trackers serve those who compare many experiments in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from potluck.core.errors import unknown

if TYPE_CHECKING:
    from potluck.trackers.base import Tracker

TRACKERS = ("csv", "tensorboard", "mlflow", "wandb")


def find_trackers(names: Sequence[str]) -> list[type[Tracker]]:
    """Return the trackers of these names, each once, after checking that their packages are installed."""
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
    if not names:
        return []
    from potluck.trackers import builtin

    classes = (
        builtin.CsvTracker,
        builtin.TensorBoardTracker,
        builtin.MlflowTracker,
        builtin.WandbTracker,
    )
    by_name: dict[str, type[Tracker]] = {each.name: each for each in classes}
    trackers = [by_name[name] for name in dict.fromkeys(names)]
    for tracker in trackers:
        tracker.check()
    return trackers
