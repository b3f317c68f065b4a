"""Program: run the pool on fake accelerators in several processes, and print the result.

It runs with the folder `away` in its path, so that its worker processes know the device too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import potluck
from potluck import doctor as doctor
from potluck.core.errors import PotluckError
from potluck.engines.pool import PoolEngine
from potluck.experiment import read_experiment
from potluck.loop.callbacks import Callback
from potluck.loop.loop import Loop
from potluck.runs import engine as run_engine
from support.tiny import Net, StopAt

FOLDER = Path(sys.argv[1])
SETTINGS: dict[str, Any] = {
    "data": {"name": "digits", "limit": 120},
    "partition": {"clients": 3},
    "schedule": {"rounds": 2},
    "training": {"epochs": 1, "optimizer": "adam", "lr": 0.01, "keep_optimizer": True},
}
ALIKE: dict[str, Any] = {"models": {"names": ["small-mlp"]}, "training": {"epochs": 1}}
POOL = {"name": "pool", "device": "away:0,away:1", "workers": 1, "memory": 1e-6}


class Killer(Callback):
    """Kills a worker process before the second round."""

    def on_start(self, loop: Loop) -> None:
        engine = loop.dispatcher.engine
        assert isinstance(engine, PoolEngine)
        self.engine, self.first = engine, engine.pids

    def on_step(self, step: Any) -> None:
        if step.record.step == 1:
            os.kill(self.engine.pids[1], signal.SIGKILL)

    def on_end(self, end: Any) -> None:
        self.replaced = self.engine.pids[0] == self.first[0] and self.engine.pids[1] != self.first[1]


def run(method: str, engine: dict[str, Any], out: str, **more: Any) -> list[dict[str, Any]]:
    experiment = {"method": {"name": method}, "engine": engine, **SETTINGS, **more.pop("settings", {})}
    result = potluck.run(experiment, out=FOLDER / out, **more)
    return [{**row, "seconds": 0} for row in result.rounds]


def pools_agree_with_one_process() -> dict[str, bool]:
    """MOON's clients keep a model; here they are put away and come back, also on another device or after a death."""
    serial_run, killer = run("moon", {"name": "serial", "device": "away"}, "serial"), Killer()
    same = {"killed": run("moon", POOL, "killed", callbacks=[killer]) == serial_run and killer.replaced}
    try:
        run("moon", POOL, "resumed", callbacks=[StopAt(1)])
    except KeyboardInterrupt:
        same["resumed"] = run("moon", POOL, "resumed", resume=True) == serial_run
    return same


def pools_of_stacks_agree_with_one_process() -> dict[str, bool]:
    """Three clients of one network make one team, which goes to either device."""
    serial_run = run(
        "fedavg", {"name": "serial", "device": "away", "vectorize": "on"}, "stack", settings=ALIKE
    )
    pool = {**POOL, "vectorize": "on"}
    return {"stacked": run("fedavg", pool, "stacks", settings=ALIKE) == serial_run}


def decisions() -> dict[str, Any]:
    """What `auto` comes to, and that it is kept."""
    calls: list[Any] = []

    def crowd(
        plan: Any, devices: list[str], clients: Sequence[int], teams: int
    ) -> tuple[int, dict[int, float]]:
        calls.append([devices, len(clients), teams])
        return 1, {1: 1.0 + len(clients)}  # whoever trains more at once is faster

    with patch.object(run_engine, "best_worker_count", crowd):
        run("standalone", {"device": "away"}, "alone")
        run("standalone", {"device": "away"}, "alone", resume=True)
        auto = {"device": "away", "vectorize": "auto"}
        run("standalone", auto, "auto", settings=ALIKE)
        run("standalone", auto, "auto", settings=ALIKE, resume=True)
    return {
        "asked": calls,
        "one worker on one device": engine_of("alone"),
        "stacks by trial": engine_of("auto", "vectorize"),
    }


def engine_of(out: str, setting: str = "name") -> str:
    return str(read_experiment(FOLDER / out / "experiment.toml")["engine"][setting])


def what_cannot_travel() -> dict[str, str]:
    """Models that only this program can make: by a closure."""
    models, pair = [lambda: Net(64, 8, 10)], (torch.randn(60, 64), torch.arange(60) % 10)
    settings = {name: part for name, part in SETTINGS.items() if name != "data"}

    def own(engine: dict[str, Any], out: str) -> None:
        potluck.run("standalone", data=pair, models=models, engine=engine, out=FOLDER / out, **settings)

    own({"device": "away"}, "own")
    try:
        own(POOL, "own-pool")
    except PotluckError as error:
        return {"closure, auto": engine_of("own"), "closure, pool": str(error)}
    return {}


def the_doctor_says() -> dict[str, Any]:
    """One kind of step that works here, one that make-believe tensors cannot do, and the CPU's pool afterwards."""
    kinds = {
        "changed gradients": "scaffold",
        "a loss over the model": "fedavg",
        "derivatives forward": "fedl2g-f",
    }
    with patch.dict(doctor.KINDS, kinds, clear=True):
        reference, here = doctor.check_cpu()
        checks = [*here, *doctor.check_device("away", reference)]
    return {"doctor": [[check.section, check.subject, check.result, check.ok] for check in checks]}


if __name__ == "__main__":
    parts = (
        pools_agree_with_one_process,
        pools_of_stacks_agree_with_one_process,
        decisions,
        what_cannot_travel,
        the_doctor_says,
    )
    print(json.dumps({name: results for part in parts for name, results in part().items()}))
