"""Checkpoints on engines other than the serial one, and states that cannot be saved."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interrupted import RARE, assert_same_run, checkpoint_of, run
from stopping import stop

import potluck
from potluck.core.errors import PotluckError
from potluck.core.training import Training
from potluck.engines.serial import SerialEngine
from potluck.loop.loop import Loop
from potluck.loop.schedule import Evaluation, Schedule
from potluck.methods.fedgh import FedGH
from potluck.runs import engine as run_engine
from potluck.runs.checkpointer import Checkpointer
from potluck.runs.writer import RunWriter
from potluck.wire.jobs import Job
from potluck.worker.worker import Worker
from support.tiny import StopAt, tiny


@pytest.mark.parametrize("case", ["fedavg", "fedgh-async"])
def test_resumed_on_another_engine_and_with_other_numbers_of_workers(
    case: str, never_stopped: Callable[[str], Path], tmp_path: Path
):
    stop(case, tmp_path, 2, engine="serial")
    stop(case, tmp_path, 3, engine="pool", workers=2)
    stop(case, tmp_path, 4, engine="pool", workers=1)
    run(case, tmp_path, engine="pool", workers=3)
    assert_same_run(never_stopped(case), tmp_path)


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_clients_with_dropped_jobs_survive_a_resume(engine: str, tmp_path: Path):
    """It counts as asked, so newer checkpoints name a newer file of it, while its engine still begins from the old."""
    settings = {
        "method": {"name": "fedavg"},
        "seed": 3,
        "data": {"name": "digits", "limit": 120},
        "models": {"names": ["small-mlp"]},
        "partition": {"clients": 4},
        "training": {"epochs": 1},
        "faults": {"dropout": 0.6},
        "schedule": {"rounds": 14, "participation": 0.5, "min_clients": 0, "on_failure": "continue"},
        "engine": {"name": engine, "workers": 2, "memory": 2e-9},
    }
    expected = potluck.run(settings, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        potluck.run(settings, out=tmp_path / "cut", callbacks=[StopAt(5)])
    resumed = potluck.run(settings, out=tmp_path / "cut", resume=True)
    assert resumed.summary["client_accuracy"] == expected.summary["client_accuracy"]
    assert len(list((tmp_path / "cut" / "checkpoint").glob("manifest-*"))) == 1


def test_the_pools_own_files_are_taken_in_without_asking_its_clients(tmp_path: Path):
    jobs: list[str] = []

    class Watch(potluck.Callback):
        def on_start(self, loop: Loop) -> None:
            submit = loop.dispatcher.engine.submit
            loop.dispatcher.engine.submit = lambda job: jobs.append(job.kind) or submit(job)

    run("fedgh", tmp_path, engine="pool", workers=2, callbacks=[Watch()])
    assert "fetch" not in jobs
    assert jobs.count("train") == 30
    assert not (tmp_path / ".work").exists()


def test_where_files_cannot_have_two_names_states_are_fetched(
    never_stopped: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def refuse(*args: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    stop("fedavg", tmp_path, 3, engine="pool", workers=2)
    run("fedavg", tmp_path, engine="pool", workers=2)
    assert_same_run(never_stopped("fedavg"), tmp_path)


def test_files_of_a_killed_pool_are_removed(tmp_path: Path):
    stop("fedgh", tmp_path, 2)
    (tmp_path / ".work/potluck-old").mkdir(parents=True)
    (tmp_path / ".work/potluck-old/3-7.safetensors").write_bytes(b"old")
    run("fedgh", tmp_path)
    assert not (tmp_path / ".work").exists()


def test_clients_that_do_not_fit_into_memory_resume_and_outlive_their_old_files(
    never_stopped: Callable[[str], Path], tmp_path: Path
):
    """Put away and brought back after their checkpoint's files are deleted: the files are read only once."""
    stop("fedgh", tmp_path, 3)
    run("fedgh", tmp_path, sections={"engine": {"memory": 1e-9}})
    assert_same_run(never_stopped("fedgh"), tmp_path)


@pytest.mark.parametrize("case", ["fedgh", "fedhe"])
def test_stacked_clients_resume_bit_by_bit(case: str, tmp_path: Path):
    """Who is trained together must not depend on when checkpoints were taken."""
    training = Training(epochs=2, batch_size=4, lr=0.05)
    more: dict[str, Any] = {"training": training, "sections": {"engine": {"vectorize": "on"}}}
    run(case, tmp_path / "whole", **more)
    stop(case, tmp_path / "stopped", 4, **more)
    run(case, tmp_path / "stopped", checkpoint_every=3, **more)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
    with pytest.raises(PotluckError, match=r"engine.vectorize is 'on' there and 'off' here"):
        run(case, tmp_path / "stopped", training=training)


def test_a_measured_choice_is_obeyed_and_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    more = {"training": RARE, "sections": {"engine": {"vectorize": "auto"}}}
    monkeypatch.setattr(run_engine, "is_stacking_faster", lambda *arguments: True)
    stop("fedgh", tmp_path, 2, **more)
    monkeypatch.setattr(run_engine, "is_stacking_faster", lambda *arguments: False)
    run("fedgh", tmp_path, **more)


def test_clients_on_other_machines_keep_their_own_state(tmp_path: Path):
    class Remote(SerialEngine):
        realtime = remote = True

        def submit(self, job: Job) -> None:
            assert job.kind in ("train", "evaluate")
            super().submit(job)

    fed = tiny(3)
    writer = RunWriter(tmp_path, {})
    with Checkpointer(writer, fed) as keeper:
        engine = Remote(Worker(FedGH(), fed.client))
        plan = Schedule(2, buffer=1, concurrency=2)
        Loop(FedGH(), fed.task, engine, plan, Evaluation(), [writer, keeper]).run()
    assert checkpoint_of(tmp_path).manifest.clients == {}
    assert checkpoint_of(tmp_path).manifest.progress["flights"] == []


def test_a_server_that_cannot_be_saved_is_a_sentence(tmp_path: Path):
    class Odd(FedGH):
        def init_server(self, ctx: potluck.Context) -> Any:
            header = super().init_server(ctx)
            return {"header": header, "seen": {1, 2}}

        def broadcast(self, state: Any, client: potluck.ClientInfo, ctx: potluck.Context) -> Any:
            return super().broadcast(state["header"], client, ctx)

        def server(self, state: Any, updates: Any, ctx: potluck.Context) -> Any:
            return state

    with pytest.raises(
        PotluckError, match=r"The server of Odd cannot be saved: state at '/state/seen' is a set"
    ):
        potluck.run(Odd(), federation=tiny(3), rounds=1, out=tmp_path / "saved")
    potluck.run(Odd(), federation=tiny(3), rounds=1, out=tmp_path / "not", checkpoint_every=0)
