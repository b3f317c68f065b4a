"""Made-up runs to compare."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from visits import FLAGS

from support.synthetic_runs import make_run


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium, one for all tests."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail(
            "chromium is not installed: run `apt-get install -y chromium fonts-dejavu` for this target."
        )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("playwright is not installed: run `pip install playwright` for this target.")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three methods with two seeds each, one of them asynchronous and failing now and then."""
    folder = tmp_path_factory.mktemp("runs")
    options = {
        "fedavg": {"level": 0.6, "speed": 0.15, "floats_up": 20000},
        "fedgh": {"level": 0.8, "speed": 0.3},
        "fedhe": {"level": 0.7, "speed": 0.2, "asynchronous": True, "failure_rate": 0.05},
    }
    return [
        make_run(folder, method=name, seed=seed, **more) for name, more in options.items() for seed in (0, 1)
    ]
