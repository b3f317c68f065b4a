"""Delete files of a finished run that neither results nor exports need."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from potluck.core.errors import PotluckError
from potluck.runs.checkpoint import last_checkpoint
from potluck.runs.folder import CHECKPOINT, FIRST_WEIGHTS, SUMMARY, WORK, experiment_file, lock_folder
from potluck.runs.generations import CheckpointStore


@dataclass(frozen=True)
class Cleaned:
    """How many bytes were deleted from a run's folder, and how many are left."""

    path: Path
    deleted: int
    left: int


def clean_run(run: str | Path, *, checkpoint: bool = False) -> Cleaned:
    """Delete all but the last intact checkpoint of a finished run; with `checkpoint`, that one too.

    Without any checkpoint a run can be neither resumed nor exported; its results and its report stay.
    """
    path = Path(run)
    experiment_file(path)
    with lock_folder(path):
        if not (path / SUMMARY).exists():
            raise PotluckError(
                f"The run in {str(path)!r} has not finished, and its checkpoints are what it continues from; finish it "
                f"first: potluck resume {path}."
            )
        before = _size(path)
        shutil.rmtree(path / WORK, ignore_errors=True)
        if checkpoint:
            shutil.rmtree(path / CHECKPOINT, ignore_errors=True)
            (path / FIRST_WEIGHTS).unlink(missing_ok=True)
        elif (last := last_checkpoint(path)) is not None:
            CheckpointStore(path / CHECKPOINT).delete_unused([last.manifest])
        remaining = _size(path)
    return Cleaned(path, before - remaining, remaining)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
