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

from benchmarks.overheads import child_environment
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
    rounds = 2 if quick else ROUNDS
    first, second, whole = list[float](), list[float](), list[tuple[float, float]]()
    for _ in range(1 if quick else 3):
        with TemporaryDirectory() as folder:
            first.append(_start(Path(folder), "first"))
            second.append(_start(Path(folder), "second"))
            whole.append(_whole(Path(folder), rounds))
    yield Row(PART, "start and report of the first run, which computes them", Spread.of(first), "s")
    yield Row(PART, "start and report of the second run", Spread.of(second), "s", START_GOAL)
    seconds = Spread.of([seconds for seconds, _ in whole])
    label = f"FedGH, {CLIENTS} clients, {rounds} rounds, start and report included"
    yield Row(PART, label, seconds, "s", RUN_GOAL)
    peak = Spread.of([megabytes for _, megabytes in whole])
    yield Row(PART, "memory of that run's largest process", peak, "MB")


def _start(folder: Path, name: str) -> float:
    """Return the seconds of a command of one round, without those of the round."""
    began = time.perf_counter()
    _call(folder, name, 1)
    whole = time.perf_counter() - began
    return whole - float(json.loads((folder / name / "summary.json").read_text())["seconds"])


def _whole(folder: Path, rounds: int) -> tuple[float, float]:
    """Return the seconds of a command and the peak memory of the process that used most, in MB."""
    began = time.perf_counter()
    peak = _call(folder, "whole", rounds)
    return time.perf_counter() - began, peak


def _call(folder: Path, name: str, rounds: int) -> float:
    """Run the command with data and features in a folder; return the peak memory of the largest process, in MB."""
    process = subprocess.Popen(
        [sys.executable, "-m", "potluck", *RUN, "--rounds", str(rounds), "--out", name],
        cwd=folder,
        env={**child_environment(), "POTLUCK_DATA": str(folder)},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), process.args)
    return used.ru_maxrss / 1024
