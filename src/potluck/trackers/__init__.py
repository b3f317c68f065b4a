"""Trackers: small callbacks that copy a run's figures to CSV, TensorBoard, MLflow or Weights & Biases.

The run folder holds everything already; a tracker is for those who watch many experiments in one place.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from potluck.core.errors import unknown

if TYPE_CHECKING:
    from potluck.trackers.base import Tracker

TRACKERS: dict[str, tuple[str, str]] = {
    "csv": ("csv_file", "CsvTracker"),
    "tensorboard": ("tensorboard", "TensorBoardTracker"),
    "mlflow": ("mlflow", "MlflowTracker"),
    "wandb": ("wandb", "WandbTracker"),
}


def find_trackers(names: Sequence[str]) -> list[type[Tracker]]:
    """The trackers of these names, each once, after a look whether what they need is installed."""
    found: list[type[Tracker]] = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        module, cls = TRACKERS[name]
        tracker: type[Tracker] = getattr(importlib.import_module(f"potluck.trackers.{module}"), cls)
        tracker.check()
        found.append(tracker)
    return found
