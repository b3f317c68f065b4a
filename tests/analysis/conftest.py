"""Fixtures for made-up runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from potluck.runs.read import RunData, read_run
from synthetic_runs import make_run


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., RunData]:
    """Make up a run with the given options and read it back."""
    return lambda **options: read_run(make_run(tmp_path, **options))
