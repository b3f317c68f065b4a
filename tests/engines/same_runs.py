"""Compare runs in full; shared by the tests of engines."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from potluck.core.client import Client
from potluck.core.method import Method
from potluck.core.training import Training
from potluck.core.tree import flatten
from potluck.federation.federation import Federation
from potluck.loop.loop import Loop
from potluck.loop.schedule import Clock, Evaluation, Schedule
from potluck.methods.fedgh import FedGH
from potluck.wire.jobs import Engine
from potluck.worker.worker import Worker
from support.tiny import Recorder, tiny

Methods = Method[Any, Any, Any]
SYNCHRONOUS = Schedule(3, participation=0.8)
ASYNCHRONOUS = Schedule(3, buffer=1, concurrency=3)
UNEVEN = Clock(duration=lambda client, number, message: 1.0 + (7 * client.index + number) % 3)


def federation() -> Federation:
    return tiny(5, norm=True, sizes=(12, 20, 9), training=Training(1, 4, momentum=0.9, keep_optimizer=True))


def worker(method: Methods, fed: Federation) -> Worker:
    return Worker(method, fed.client)


def outcome(method: Methods, engine: Engine, fed: Federation, schedule: Schedule) -> dict[str, Any]:
    """Everything that a run leaves behind but the time it took."""
    recorder = Recorder()
    evaluation = Evaluation("local", ("received", "shared"))
    clock = UNEVEN if schedule is ASYNCHRONOUS else None
    loop = Loop(
        method, fed.task, engine, schedule, evaluation, [recorder], clock=clock, shared_test=fed.shared_test
    )
    try:
        progress = loop.run()
        states = [loop.dispatcher.fetch(info.index, loop.server.context()) for info in fed.task.clients]
    finally:
        engine.close()
    tensors = {f"client {n}{name}": t for n, flat in enumerate(states) for name, t in flat.tensors.items()}
    tensors |= {f"server {name}": t for name, t in flatten(progress.state).tensors.items()}
    records = [{**asdict(step.record), "seconds": 0} for step in recorder.steps]
    final = [asdict(score) for score in (*recorder.end.scores, *recorder.end.validation)]
    return {"records": records, "final": final, "tensors": tensors}


def assert_equal(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual["records"] == expected["records"]
    assert actual["final"] == expected["final"]
    assert actual["tensors"].keys() == expected["tensors"].keys()
    for name, tensor in actual["tensors"].items():
        assert torch.equal(tensor, expected["tensors"][name]), name


@dataclass
class Dawdling(FedGH):
    """FedGH on machines of moods: who is slow changes from job to job."""

    def client(self, me: Client, message: Any) -> Any:
        time.sleep(0.01 * ((5 * me.info.index + 3 * me.job) % 4))
        return super().client(me, message)


@dataclass
class Fatal(FedGH):
    """FedGH whose client `who` takes its worker down in its job 1, as often as there are lives to lose."""

    lives: Path = Path()
    times: int = 1
    who: int = 1

    def client(self, me: Client, message: Any) -> Any:
        answer = super().client(me, message)
        if me.info.index == self.who and me.job == 1 and len(list(self.lives.iterdir())) < self.times:
            (self.lives / str(time.monotonic_ns())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
