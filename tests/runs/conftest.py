"""Shared runs to compare with."""

from collections.abc import Callable
from pathlib import Path

import interrupted
import pytest

from potluck.runs.checkpointer import Checkpointer


@pytest.fixture(scope="session")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case's run that was not interrupted."""
    runs: dict[str, Path] = {}

    def run(case: str) -> Path:
        if case not in runs:
            path = tmp_path_factory.mktemp(case)
            interrupted.run(case, path)
            runs[case] = path
        return runs[case]

    return run


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round is saved, however slow the disk: a test can then say which checkpoint is there."""

    def wait(self: Checkpointer) -> bool:
        if self._commit is not None:
            self._commit.exception()
        return False

    monkeypatch.setattr(Checkpointer, "_busy", wait)
