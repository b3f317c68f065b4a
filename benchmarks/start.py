"""What a run costs that hardly trains: imports, data, processes, files, report."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.rows import Row
from benchmarks.trials import Spread, ratio, time_alternately

PART = "a short run"
RUN = ("-m", "potluck", "run", "fedgh", "--rounds", "1", "--clients", "4")


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Processor seconds of a command and all its processes, beside those of a Python that only imports torch."""
    with TemporaryDirectory() as folder:
        actions = {
            "import torch": lambda: _call("-c", "import torch"),
            "potluck run, 4 clients, 1 round of digits": lambda: _call(*RUN, cwd=Path(folder)),
        }
        seconds = time_alternately(actions, 1 if quick else 5, clock=_children)
    torch_alone, run = seconds.values()
    for what, found in seconds.items():
        yield Row(PART, what, Spread.of(found), "s")
    yield Row(PART, "the run ÷ import torch", ratio(run, torch_alone), "×", 3.0)


def _call(*words: str, cwd: Path | None = None) -> None:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    subprocess.run(
        [sys.executable, *words],
        check=True,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=300,
    )


def _children() -> float:
    """Processor time of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
