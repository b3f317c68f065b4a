"""A tracked run."""

from pathlib import Path
from typing import Any

import pytest
from tracked_runs import Tracked

import potluck
from support.tiny import StopAt, tiny


@pytest.fixture
def tracked(tmp_path: Path) -> Tracked:
    """A short run in `tmp_path / "run"`; `stop_at` interrupts it after that step, before it is saved."""

    def run(track: str, *, stop_at: int | None = None, **more: Any) -> Any:
        settings = {"federation": tiny(2), "rounds": 2, "engine": "serial", "out": tmp_path / "run", **more}
        if not stop_at:
            return potluck.run("fedavg", track=track, **settings)
        with pytest.raises(KeyboardInterrupt):
            potluck.run("fedavg", track=track, callbacks=[StopAt(stop_at)], **settings)
        return None

    return run
