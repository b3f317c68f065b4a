"""A small run that keeps its answers for leak analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import potluck


def kept_run(folder: Path, method: str, **more: Any) -> Path:
    """The folder of a short run of five small clients on digits."""
    settings: dict[str, Any] = {
        "data": {"limit": 300},
        "clients": 5,
        "rounds": 2,
        "engine": "serial",
        "models": "small-mlp",
        **more,
    }
    return potluck.run(method, out=folder / method, keep_answers=True, **settings).path
