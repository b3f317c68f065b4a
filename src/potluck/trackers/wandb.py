"""Weights & Biases, offline unless WANDB_MODE says otherwise: nothing leaves the machine by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from potluck.core.loop import Loop
from potluck.trackers.base import Tracker, need


class WandbTracker(Tracker):
    """Keeps its files in the run's folder; `wandb sync` sends them when you want it."""

    def __init__(self, path: Path, label: str) -> None:
        super().__init__(path, label)
        self._wandb = need("wandb", "wandb")
        self._run: Any = None

    def on_start(self, loop: Loop) -> None:
        """Open the run and name what makes it this one."""
        self._run = self._wandb.init(
            project="potluck",
            name=self.label,
            dir=str(self.path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config={
                "method": loop.method.name or type(loop.method).__name__,
                "rounds": loop.schedule.rounds,
                "clients": len(loop.task.clients),
                "seed": loop.task.seed,
            },
        )

    def show(self, values: dict[str, float], step: int) -> None:
        """All figures of a step at once."""
        self._run.log(values, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
