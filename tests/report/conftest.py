"""Made-up runs as a reader would compare them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from synthetic_runs import make_run


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
