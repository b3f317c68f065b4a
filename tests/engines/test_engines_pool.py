"""The pool gives the serial engine's bits under any timing, failure and restart."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from same_runs import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    Dawdling,
    Fatal,
    Methods,
    assert_equal,
    federation,
    outcome,
    worker,
)

from potluck.core.client import Client
from potluck.core.payload import EmptyPayload
from potluck.core.tree import Flat
from potluck.engines.pool import PoolEngine
from potluck.engines.pool.engine import is_stopped, set_socket_timeout
from potluck.engines.pool.process import socket_pair
from potluck.engines.serial import SerialEngine
from potluck.loop.dispatch import ClientFailed
from potluck.loop.schedule import Schedule
from potluck.methods import METHODS, method_class
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedgh import FedGH
from potluck.methods.standalone import Standalone
from potluck.testing.conformance import small_federation
from potluck.wire import Message, receive, send
from potluck.wire.jobs import Engine, Job
from potluck.worker.worker import Worker


@pytest.mark.parametrize("name", METHODS)
def test_every_method_equals_its_serial_run(name: str) -> None:
    method = method_class(name)()
    fed = small_federation(method, clients=4)
    serial = outcome(method, SerialEngine(worker(method, fed)), fed, Schedule(2))
    assert_equal(outcome(method, PoolEngine(lambda: worker(method, fed), 2), fed, Schedule(2)), serial)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("method", [FedAvg(), Dawdling()], ids=["fedavg", "dawdling"])
def test_the_number_of_workers_and_their_pace_do_not_matter(method: Methods, workers: int) -> None:
    fed = federation()
    serial = outcome(method, SerialEngine(worker(method, fed)), fed, SYNCHRONOUS)
    assert_equal(outcome(method, PoolEngine(lambda: worker(method, fed), workers), fed, SYNCHRONOUS), serial)


@dataclass
class Signing(Standalone):
    """Leaves a file when it is tested."""

    folder: str = ""

    def predict(self, me: Client, message: Any) -> Any:
        Path(self.folder, str(me.info.index)).touch()
        return super().predict(me, message)


def test_a_test_begins_before_the_next_one_is_submitted(tmp_path: Path) -> None:
    fed, method = federation(), Signing(folder=str(tmp_path))
    engine = PoolEngine(lambda: worker(method, fed), 2)
    try:
        for index in range(3):  # the third needs a worker that is done with another
            engine.submit(
                Job(index + 1, "evaluate", index, 0, round=1, rounds=1, message=None, tests=("own",))
            )
            until = time.monotonic() + 60
            while not (tmp_path / str(index)).exists():
                assert time.monotonic() < until, "nobody began"
                engine.refill()
        assert sorted(result.job for result in engine.results()) == [1, 2, 3]
    finally:
        engine.close()


def test_asynchronous_schedule_does_not_depend_on_real_timing() -> None:
    fed, method = federation(), Dawdling()
    serial = outcome(method, SerialEngine(worker(method, fed)), fed, ASYNCHRONOUS)
    pool = outcome(method, PoolEngine(lambda: worker(method, fed), 2), fed, ASYNCHRONOUS)
    assert_equal(pool, serial)


def test_clients_that_do_not_fit_in_memory_give_the_same_results(tmp_path: Path) -> None:
    fed, method = federation(), FedGH()
    plain = outcome(method, SerialEngine(worker(method, fed)), fed, SYNCHRONOUS)
    cramped = SerialEngine(worker(method, fed), memory=1, spill_dir=tmp_path)
    assert_equal(outcome(method, cramped, fed, SYNCHRONOUS), plain)
    pool = PoolEngine(lambda: worker(method, fed), 2, memory=1, spill_dir=tmp_path)
    assert_equal(outcome(method, pool, fed, SYNCHRONOUS), plain)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_killed_changes_nothing(tmp_path: Path, workers: int) -> None:
    fed = federation()
    serial = outcome(FedGH(), SerialEngine(worker(FedGH(), fed)), fed, SYNCHRONOUS)
    fatal = Fatal(lives=tmp_path, times=2)
    pool = outcome(fatal, PoolEngine(lambda: worker(fatal, fed), workers), fed, SYNCHRONOUS)
    assert len(list(tmp_path.iterdir())) == 2
    assert_equal(pool, serial)


def test_an_idle_worker_that_is_killed_changes_nothing() -> None:
    fed, method = federation(), FedGH()
    serial = outcome(method, SerialEngine(worker(method, fed)), fed, SYNCHRONOUS)
    engine = PoolEngine(lambda: worker(method, fed), 2)
    os.kill(engine.pids[0], signal.SIGKILL)
    assert_equal(outcome(method, engine, fed, SYNCHRONOUS), serial)


def test_a_job_that_kills_every_worker_is_its_clients_failure(tmp_path: Path) -> None:
    fed, fatal = federation(), Fatal(lives=tmp_path, times=99)
    died = "train in round 2: its worker process died 3 times (signal SIGKILL)"
    with pytest.raises(ClientFailed, match=r"client 1 'client-1', train in round 2: its worker process died"):
        outcome(fatal, PoolEngine(lambda: worker(fatal, fed), 2), fed, Schedule(2))
    assert len(list(tmp_path.iterdir())) == 3
    result = outcome(
        fatal, PoolEngine(lambda: worker(fatal, fed), 2), fed, Schedule(2, on_failure="continue")
    )
    (failure,) = result["records"][1]["failures"]
    assert (failure["client"], failure["kind"]) == (1, "error")
    assert failure["reason"] == f"{died}; if memory is short, use fewer engine.workers"
    assert result["records"][1]["participants"] == [0, 2, 3, 4]


@dataclass
class Halting(FedGH):
    """Client 1 stops the process that does its second job, for good, the first time."""

    lives: Path = Path()

    def client(self, me: Client, message: Any) -> Any:
        answer = super().client(me, message)
        mark = self.lives / "stopped"
        if me.info.index == 1 and me.round == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_stopped_for_good_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr("potluck.engines.pool.engine.CHECK_INTERVAL", 0.2)
    fed = federation()
    serial = outcome(FedGH(), SerialEngine(worker(FedGH(), fed)), fed, SYNCHRONOUS)
    halting = Halting(lives=tmp_path)
    pool = outcome(halting, PoolEngine(lambda: worker(halting, fed), workers), fed, SYNCHRONOUS)
    assert (tmp_path / "stopped").exists()
    assert_equal(pool, serial)


def test_an_idle_worker_that_is_stopped_is_given_no_job() -> None:
    fed, method = federation(), FedGH()
    serial = outcome(method, SerialEngine(worker(method, fed)), fed, SYNCHRONOUS)
    engine = PoolEngine(lambda: worker(method, fed), 2)
    stopped = engine.pids[0]
    os.kill(stopped, signal.SIGSTOP)
    assert_equal(outcome(method, engine, fed, SYNCHRONOUS), serial)
    assert stopped not in engine.pids


def test_worker_stalled_inside_a_message_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("potluck.engines.pool.engine.STALL_TIMEOUT", 1)
    near_end, far_end = socket_pair()
    set_socket_timeout(near_end)
    far_end.sendall(b"\x10\0\0\0")  # the beginning of a length, and then nothing
    with pytest.raises(ConnectionResetError, match="stands still"):
        receive(near_end)
    big = Message({}, state=Flat({"x": torch.zeros(4 << 20)}, None))  # more than the sockets hold
    with pytest.raises(OSError, match="temporarily unavailable"):
        send(near_end, big)


def test_stopped_process_differs_from_sleeping_one() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert not is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert is_stopped(child.pid)
        assert not is_stopped(None)
    finally:
        child.kill()
        child.wait()


@dataclass
class Broken(Standalone):
    """Client 2 cannot train."""

    def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
        if me.info.index == 2:
            raise ValueError("no such luck")
        return super().client(me, message)


def test_an_exception_arrives_with_its_story() -> None:
    fed, method = federation(), Broken()
    story = r"Broken, client 2 'client-2', train in round 1: ValueError: no such"
    with pytest.raises(ClientFailed, match=story) as info:
        outcome(method, PoolEngine(lambda: worker(method, fed), 2), fed, Schedule(1))
    assert "no such luck" in info.value.__notes__[0]
    going_on = Schedule(2, on_failure="continue")
    serial = outcome(method, SerialEngine(worker(method, fed)), fed, going_on)
    assert serial["records"][0]["failures"] == [
        {"client": 2, "kind": "error", "reason": "train in round 1: ValueError: no such luck"}
    ]
    assert_equal(outcome(method, PoolEngine(lambda: worker(method, fed), 2), fed, going_on), serial)


@dataclass
class Hoarding(Standalone):
    """Keeps something that nobody can write down."""

    def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
        me.private["secret"] = object()
        return EmptyPayload()


@pytest.mark.parametrize("make", [SerialEngine, lambda client_worker: PoolEngine(lambda: client_worker, 1)])
def test_private_state_that_cannot_be_saved_is_an_error_on_every_engine(
    make: Callable[[Worker], Engine],
) -> None:
    fed = federation()
    with pytest.raises(ClientFailed, match="'/private/secret' is a object, which cannot be saved"):
        outcome(Hoarding(), make(worker(Hoarding(), fed)), fed, SYNCHRONOUS)
