"""TensorBoard: `tensorboard --logdir runs` shows all runs below a folder."""

from __future__ import annotations

from typing import Any

from potluck.loop.loop import Loop
from potluck.trackers.base import Tracker, need


class TensorBoardTracker(Tracker):
    """Writes event files into `tensorboard/` of the run's folder."""

    name = "tensorboard"
    _writer: Any

    @classmethod
    def check(cls) -> None:
        """Torch brings the writer, TensorBoard the format."""
        need("tensorboard", "tensorboard")
        need("torch.utils.tensorboard", "tensorboard")

    def open(self, loop: Loop) -> None:
        """A new event file; what an earlier process wrote after the last checkpoint is hidden by it."""
        board, step = need("torch.utils.tensorboard", "tensorboard"), loop.progress.step
        self._writer = board.SummaryWriter(
            str(self.path / "tensorboard"), purge_step=step + 1 if step else None
        )

    def show(self, values: dict[str, float], step: int) -> None:
        """One scalar per figure."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        """Close the event file."""
        self._writer.close()
