"""TensorBoard: `tensorboard --logdir runs` shows all runs below a folder."""

from __future__ import annotations

from pathlib import Path

from potluck.trackers.base import Tracker, need


class TensorBoardTracker(Tracker):
    """Writes event files into `tensorboard/` of the run's folder."""

    def __init__(self, path: Path, label: str) -> None:
        super().__init__(path, label)
        need("tensorboard", "tensorboard")
        board = need("torch.utils.tensorboard", "tensorboard")
        self._writer = board.SummaryWriter(str(path / "tensorboard"))

    def show(self, values: dict[str, float], step: int) -> None:
        """One scalar per figure."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
