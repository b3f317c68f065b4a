"""Trackers: small callbacks that copy a run's figures to CSV, TensorBoard, MLflow or Weights & Biases.

The run folder holds everything already; a tracker is for those who watch many experiments in one place.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from potluck.core.callback import Callback
from potluck.core.errors import unknown

TRACKERS: dict[str, tuple[str, str]] = {
    "csv": ("csv_file", "CsvTracker"),
    "tensorboard": ("tensorboard", "TensorBoardTracker"),
    "mlflow": ("mlflow", "MlflowTracker"),
    "wandb": ("wandb", "WandbTracker"),
}


def make_trackers(names: Sequence[str], path: Path, label: str) -> list[Callback]:
    """The trackers of these names for the run in `path`, which they show under `label`."""
    made = []
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        module, cls = TRACKERS[name]
        made.append(getattr(importlib.import_module(f"potluck.trackers.{module}"), cls)(path, label))
    return made
