"""Measure runs on stored features of frozen networks: the first run, a second one, many rounds, and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.results import Row, Spread

PART = "features of frozen networks, stored"
CLIENTS, ROUNDS = 20, 50
START_GOAL, RUN_GOAL = 2.0, 10.0
RUN = (
    *("run", "fedgh", "--data", "digits", "--models", "lite0,lite1,lite2", "--clients", str(CLIENTS)),
    *("--set", "models.image_size=64", "--set", "models.feature_dim=64", "--set", "training.train=head"),
    *("--set", "training.optimizer=adam", "--lr", "0.003", "--quiet"),
)


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Seconds of a command around its training without and with stored features, of a whole run, and its peak memory.

    1,797 digits as pictures of 64 × 64 through three EfficientNet-Lite; the pool with a worker per core.
    """
    trials = 1 if quick else 3
    first, second = [], []
    for _ in range(trials):
        with TemporaryDirectory() as folder:
            first.append(_start(Path(folder), "first"))
            second.append(_start(Path(folder), "second"))
            if len(second) < trials:
                continue
            seconds, megabytes = zip(
                *(_whole(Path(folder), 2 if quick else ROUNDS) for _ in range(trials)), strict=True
            )
    yield Row(PART, "start and report of the first run, which computes them", Spread.of(first), "s")
    yield Row(PART, "start and report of the second run", Spread.of(second), "s", START_GOAL)
    label = f"FedGH, {CLIENTS} clients, {2 if quick else ROUNDS} rounds, start and report included"
    yield Row(PART, label, Spread.of(list(seconds)), "s", RUN_GOAL)
    yield Row(PART, "memory of that run's largest process", Spread.of(list(megabytes)), "MB")


def _start(folder: Path, name: str) -> float:
    """Return the seconds of a command of one round, without those of the round."""
    began = time.perf_counter()
    _call(folder, name, 1)
    whole = time.perf_counter() - began
    return whole - float(json.loads((folder / name / "summary.json").read_text())["seconds"])


def _whole(folder: Path, rounds: int) -> tuple[float, float]:
    """Return the seconds of a command and the peak memory of the process that used most, in MB."""
    began = time.perf_counter()
    peak = _call(folder, f"whole-{time.monotonic_ns()}", rounds)
    return time.perf_counter() - began, peak


def _call(folder: Path, name: str, rounds: int) -> float:
    """Run the command with data and features in a folder; return the peak memory of the largest process, in MB."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-m", "potluck", *RUN, "--rounds", str(rounds), "--out", name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "POTLUCK_DATA": str(folder)},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), process.args)
    return used.ru_maxrss / 1024
