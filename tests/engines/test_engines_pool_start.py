"""The pool forks its CPU workers before Python 3.12 and spawns them from then on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import potluck
from potluck.core.errors import PotluckError
from potluck.core.training import Training
from potluck.engines.pool import engine as pool_engine
from potluck.engines.pool import process
from potluck.federation.members import federate
from support.tiny import tiny

SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "clients": 3,
    "models": "small-mlp,small-cnn",
    "data": {"limit": 150},
    "training": {"epochs": 1},
}
COMPARED = ("accuracy", "loss", "train_loss", "bytes_up", "bytes_down")


@pytest.fixture
def other_thread() -> Iterator[None]:
    """A thread beside the main one while a test runs."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.fixture
def risky(monkeypatch: pytest.MonkeyPatch, other_thread: None) -> None:
    """A Python of 3.12 or later, in a process with another thread."""
    monkeypatch.setattr(process, "FORKS_ARE_RISKY", True)
    monkeypatch.setattr(threading, "active_count", lambda: 2)  # other tests may have left threads


@pytest.fixture
def no_fork(risky: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and a fork is an error."""
    monkeypatch.setattr(pool_engine, "fork_worker", lambda *_: pytest.fail("forked"))


def rows(run: Any) -> list[list[float]]:
    return [[row[name] for name in COMPARED] for row in run.rounds]


def test_spawned_workers_give_the_bits_of_the_serial_engine(no_fork: None, tmp_path: Path) -> None:
    serial = potluck.run("fedgh", **SETTINGS, engine={"name": "serial"}, out=tmp_path / "serial")
    pool = potluck.run("fedgh", **SETTINGS, engine={"name": "pool", "workers": 2}, out=tmp_path / "pool")
    assert rows(pool) == rows(serial)
    assert pool.summary["engine"] == "pool"


def test_a_population_of_objects_can_be_sent_to_spawned_workers(no_fork: None, tmp_path: Path) -> None:
    fed = tiny(3, training=Training(epochs=1, batch_size=4))
    runs = [
        potluck.run("fedgh", federation=fed, rounds=1, engine={"name": name}, out=tmp_path / name)
        for name in ("serial", "pool")
    ]
    assert rows(runs[0]) == rows(runs[1])


def test_unpicklable_objects_use_the_serial_engine_where_forks_are_unsafe(
    risky: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fed = tiny(2)
    fed.members[0].model = lambda: torch.nn.Identity()  # no module of this name can be imported
    arguments = {"federation": fed, "rounds": 1, "out": tmp_path / "run"}
    with pytest.raises(
        PotluckError, match=r"other threads, of which this one has 1, .* or use --engine serial"
    ):
        potluck.run("fedgh", **arguments, engine={"name": "pool"})
    with caplog.at_level(logging.WARNING, "potluck"), pytest.raises(PotluckError):
        potluck.run("fedgh", **arguments)
    assert "Continuing with the serial engine" in caplog.text


def test_a_process_of_one_thread_may_be_forked_on_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FORKS_ARE_RISKY", True)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert process.fork_problem() is None
    monkeypatch.setattr(threading, "active_count", lambda: 3)
    assert "of which this one has 2" in str(process.fork_problem())
    monkeypatch.setattr(process, "FORKS_ARE_RISKY", False)
    assert process.fork_problem() is None


def test_a_federation_of_importable_parts_can_be_pickled() -> None:
    import pickle

    fed = tiny(2)
    again = pickle.loads(pickle.dumps(fed))
    assert torch.equal(again.client(1).train.take(slice(0, 3))[0], fed.client(1).train.take(slice(0, 3))[0])
    assert isinstance(again, type(federate([fed.members[0]])))
