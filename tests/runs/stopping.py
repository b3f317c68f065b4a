"""Stop a run inside this process, as Ctrl-C does, and damage its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import interrupted
import pytest

from support.tiny import StopAt


def stop(case: str, out: Path, step: int, **more: Any) -> KeyboardInterrupt:
    """Run until this server step; the checkpoints before it are whole then."""
    with pytest.raises(KeyboardInterrupt) as stopped:
        interrupted.run(case, out, callbacks=[StopAt(step)], **more)
    return stopped.value


def flip(path: Path, place: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Lose the last bytes."""
    path.write_bytes(path.read_bytes()[:-3])
