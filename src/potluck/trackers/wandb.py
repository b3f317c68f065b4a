"""Weights & Biases, offline unless WANDB_MODE says otherwise: nothing leaves the machine by itself."""

from __future__ import annotations

import os
from typing import Any

from potluck.loop.loop import Loop
from potluck.trackers.base import Tracker, facts, need

RUN_ID = ".wandb-run"  # in the run's folder, so that both halves of a resumed run are one run when synced


class WandbTracker(Tracker):
    """Keeps its files in the run's folder; `wandb sync` sends them when you want it."""

    name = "wandb"
    _run: Any

    @classmethod
    def check(cls) -> None:
        """One package."""
        need("wandb", "wandb")

    def open(self, loop: Loop) -> None:
        """Open the run and name what makes it this one; a run that the caller has open is not touched."""
        wandb, note = need("wandb", "wandb"), self.path / RUN_ID
        known = note.read_text(encoding="utf-8") if loop.progress.step and note.exists() else None
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "potluck"),
            name=self.label,
            dir=str(self.path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            id=known,
            resume="allow" if known else None,
            reinit="create_new",
            config=facts(loop),
        )
        note.write_text(str(self._run.id), encoding="utf-8")

    def show(self, values: dict[str, float], step: int) -> None:
        """All figures of a step at once."""
        self._run.log(values, step=step)

    def close(self, *, finished: bool) -> None:
        """Finish the run, as failed where it was stopped."""
        self._run.finish(exit_code=0 if finished else 1)
