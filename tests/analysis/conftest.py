"""Fixtures for made-up runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from potluck.runs.read import read_run
from potluck.runs.run import Run
from support.synthetic_runs import make_run


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Run]:
    """Make up a run with the given options and read it back."""
    return lambda **options: read_run(make_run(tmp_path, **options))
