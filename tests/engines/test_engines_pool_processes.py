"""Worker processes end in time and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from same_runs import federation, worker

from potluck.core.client import Client
from potluck.core.payload import EmptyPayload
from potluck.engines.pool import PoolEngine
from potluck.methods.standalone import Standalone
from potluck.wire.jobs import Job

TESTS = Path(__file__).parent
PYTHONPATH = os.pathsep.join([*sys.path, str(TESTS), str(TESTS.parent)])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def process_ended(pid: int, seconds: float = 3.0) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


@dataclass
class Endless(Standalone):
    """Never finishes."""

    def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
        time.sleep(60)
        return EmptyPayload()


def train_job(number: int, client: int) -> Job:
    return Job(number, "train", client, 0, round=1, rounds=1, message=EmptyPayload())


def test_closing_ends_busy_workers_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    fed = federation()
    engine = PoolEngine(lambda: worker(Endless(), fed), 2, spill_dir=tmp_path)
    (folder,) = tmp_path.iterdir()
    workers = engine.pids
    for client in range(3):
        engine.submit(train_job(client + 1, client))
    engine._give_out()
    started = time.monotonic()
    engine.close()
    engine.close()
    assert time.monotonic() - started < 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)  # not even as zombies
    assert not folder.exists()


def test_unclosed_engine_ends_with_its_last_reference(tmp_path: Path) -> None:
    engine = PoolEngine(lambda: worker(Standalone(), federation()), 1, spill_dir=tmp_path)
    (pid,) = engine.pids
    del engine
    assert not Path(f"/proc/{pid}").exists()
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
from test_engines_pool_processes import *
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell hands it down ignored
engine = PoolEngine(lambda: worker(Endless(), federation()), 2, spill_dir={folder!r})
for client in range(3):
    engine.submit(train_job(client + 1, client))
print(*engine.pids, flush=True)
try:
    list(engine.results())
finally:
    engine.close()
"""


@pytest.fixture
def busy_parent(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process with two workers that never finish."""
    code = SCRIPT.format(folder=str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    ) as parent:
        assert parent.stdout is not None
        yield parent, [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(
    busy_parent: tuple[subprocess.Popen[str], list[int]], how: signal.Signals, tmp_path: Path
) -> None:
    parent, workers = busy_parent
    assert len(workers) == 2
    assert all(alive(pid) for pid in workers)
    parent.send_signal(how)
    assert all(process_ended(pid) for pid in workers)
    parent.wait(timeout=20)
    assert list(tmp_path.iterdir()) == []


THREADS = """
import os, signal, torch
from same_runs import *
from potluck.engines.pool import PoolEngine
from potluck.methods.fedavg import FedAvg

def use_threads():
    torch.set_num_threads(2)
    torch.nn.Conv2d(3, 16, 5)(torch.randn(8, 3, 32, 32)).sum().backward()
    torch.set_num_threads(1)

use_threads()
engine = PoolEngine(lambda: worker(FedAvg(), federation()), 2)
use_threads()
os.kill(engine.pids[0], signal.SIGKILL)
outcome(FedAvg(), engine, federation(), SYNCHRONOUS)
print("done")
"""


def test_workers_do_not_hang_after_threads_were_used_in_the_parent() -> None:
    result = subprocess.run(
        [sys.executable, "-c", THREADS],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "2"},
    )
    assert result.stdout == "done\n", result.stderr
