"""Runs killed on purpose in forked processes, so that kills are real and starts cheap."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import potluck
from potluck.core.client import Client
from potluck.core.training import Training
from potluck.methods import method_class
from potluck.runs import generations
from potluck.runs.checkpoint import Checkpoint, last_checkpoint
from support.tiny import tiny

# Everything that can be forgotten is there: BatchNorm, an optimiser that lives on, clients that sit rounds out.
KEPT = Training(epochs=2, batch_size=4, lr=0.01, optimizer="adam", keep_optimizer=True)
RARE = Training(epochs=2, batch_size=4, lr=0.05, momentum=0.9, keep_optimizer=True)
CASES: dict[str, dict[str, Any]] = {
    "fedgh": {"method": "fedgh", "rounds": 6},
    "fedavg": {"method": "fedavg", "rounds": 6, "participation": 0.5, "training": RARE},
    "scaffold": {"method": "scaffold", "rounds": 6, "participation": 0.5, "hidden": (5,), "training": RARE},
    "fedhe": {"method": "fedhe", "rounds": 5, "schedule": {"mode": "async", "concurrency": 3}},
    "fedgh-async": {
        "method": "fedgh",
        "rounds": 5,
        "schedule": {"mode": "async", "concurrency": 3, "buffer": 2},
    },
}
TIMING = {"seconds", "samples_per_second", "engine", "command", "made"}


def run(case: str, out: Path, **more: Any) -> potluck.Run:
    """One of the cases, from the start or from wherever its folder stands."""
    settings = {"engine": "serial", **CASES[case], **more}
    method, training = settings.pop("method"), settings.pop("training", KEPT)
    hidden, sizes = settings.pop("hidden", (5, 7)), settings.pop("sizes", (12, 9, 16))
    kinds = ((0, 1, 2), (0, 1), (1, 2), (2,), None)
    federation = tiny(5, norm=True, hidden=hidden, sizes=sizes, classes_of=kinds, training=training)
    start = {"method": {"name": method}, **settings.pop("sections", {})}
    return potluck.run(start, federation=federation, out=out, resume=True, **settings)


class Child:
    """A forked process that does something until it ends or is killed."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.process = multiprocessing.get_context("fork").Process(target=_quietly, args=(action,))
        self.process.start()

    def end(self) -> bool:
        """Wait for its end; whether it was killed. Its own failures are ours."""
        self.process.join()
        assert self.process.exitcode in (0, -signal.SIGKILL), f"exit code {self.process.exitcode}"
        return self.process.exitcode != 0

    def kill(self) -> bool:
        """Kill it, if it still lives; whether it was killed."""
        self.process.kill()
        return self.end()


def _quietly(action: Callable[[], object]) -> None:
    torch.set_num_threads(1)
    action()


def kill_at_random(case: str, place: Path, kills: int, seed: int, **more: Any) -> list[Path]:
    """Start a run again and again and kill it at random moments, so many times; the folders of all that ended.

    A run that gets through before it was killed often enough is followed by another one.
    """
    rng, folders = random.Random(seed), [place / "0"]
    started = time.perf_counter()
    assert not Child(lambda: run(case, place / "timed", **more)).end()
    seconds = time.perf_counter() - started
    while kills:
        child = Child(lambda: run(case, folders[-1], **more))
        time.sleep(rng.uniform(0.0, 0.6) * seconds)
        if child.kill():
            kills -= 1
        else:
            folders.append(place / str(len(folders)))
    assert not Child(lambda: run(case, folders[-1], **more)).end()
    return folders


def kill_at_each(target: str, case: str, out: Path, *, stride: int = 1, **more: Any) -> int:
    """Kill the n-th process at the n-th thing of this kind that it does, until one gets through; how often it was killed.

    `disk`: half of a file written, a sync, a rename, a truncation, a deletion. `training`: an optimiser's step.
    `server`: a server step.
    """
    for number in range(1, 1000):
        if not Child(lambda n=number: _run_until(n * stride, target, case, out, **more)).end():
            return number - 1
    raise AssertionError("it never got through")


def _run_until(number: int, target: str, case: str, out: Path, **more: Any) -> None:
    """Count, and die at the given count. Patches are safe here: this process is forked and ends anyway."""
    lock, count, me = threading.Lock(), 0, os.getpid()

    def tick() -> None:
        nonlocal count
        if os.getpid() == me:
            with lock:
                count += 1
                if count == number:
                    os.kill(me, signal.SIGKILL)

    def ticking(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tick()
            return function(*args, **kwargs)

        return call

    if target == "training":
        Client.apply = ticking(Client.apply)
    elif target == "server":
        cls = method_class(CASES[case]["method"])
        cls.server = ticking(cls.server)
    else:
        write = generations._write

        def halves(path: Path, buffers: Sequence[bytes]) -> None:
            data = b"".join(buffers)
            path.write_bytes(data[: len(data) // 2])
            tick()
            write(path, buffers)

        generations._write = halves
        for name in ("fsync", "link", "replace", "truncate", "unlink"):
            setattr(os, name, ticking(getattr(os, name)))
    run(case, out, **more)


# -- comparing ----------------------------------------------------------------------------------------------


def assert_same_run(actual: Path, expected: Path) -> None:
    """Every metric but times, every client's state and the server's, bit by bit."""
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert lines(actual / name) == lines(expected / name)
    assert summary(actual) == summary(expected)
    a, b = checkpoint_of(actual), checkpoint_of(expected)
    assert a.manifest.round == b.manifest.round
    assert _progress(a) == _progress(b)
    assert a.manifest.clients.keys() == b.manifest.clients.keys()
    assert_same_state(
        a.generations.read_state(a.manifest.server), b.generations.read_state(b.manifest.server)
    )
    for index in a.manifest.clients:
        assert_same_state(a.client(int(index)), b.client(int(index)))


def assert_same_state(actual: Any, expected: Any) -> None:
    assert actual.layout == expected.layout
    assert actual.tensors.keys() == expected.tensors.keys()
    for name, tensor in actual.tensors.items():
        assert torch.equal(tensor, expected.tensors[name]), name


def checkpoint_of(path: Path) -> Checkpoint:
    """The last checkpoint, which must be there."""
    checkpoint = last_checkpoint(path)
    assert checkpoint is not None
    return checkpoint


def lines(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMING} for row in rows]


def summary(path: Path) -> dict[str, Any]:
    values = json.loads((path / "summary.json").read_text())
    return {key: value for key, value in values.items() if key not in TIMING}


def _progress(checkpoint: Checkpoint) -> dict[str, Any]:
    # Jobs that fetch states have numbers too, and an interrupted run has more of them.
    return {key: value for key, value in checkpoint.manifest.progress.items() if key != "jobs"}
