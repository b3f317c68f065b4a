"""A node's worker process loads data once; kills and changed files leave the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from potluck.core.method import payload_types
from potluck.flower.deploy.processes import descendants
from potluck.flower.deploy.serve import make_secret, worker_command
from potluck.flower.deploy.supernode import WorkerLink
from potluck.flower.node.host import NodeHost
from potluck.flower.node.registration import Assignment
from potluck.flower.polling import Polling
from potluck.wire import from_bytes, pack_job, to_bytes
from potluck.wire.jobs import Job
from potluck.worker.worker import Worker
from support.own_nodes import experiment, write_node

STANDALONE = experiment("standalone")


def job(number: int) -> bytes:
    order = Assignment(STANDALONE.model_dump_json(exclude_none=True), "ab12")
    message = payload_types(STANDALONE.build_method())[0]()
    return to_bytes(
        order.attach_to(
            pack_job(
                Job(
                    number + 1,
                    "train",
                    0,
                    number,
                    round=number + 1,
                    rounds=9,
                    message=message,
                    tests=("own",),
                )
            )
        )
    )


def node(folder: Path) -> Path:
    """A node whose data function counts how often it is called."""
    path = write_node(folder, "counting", "mlp-1+6", 1)
    source = folder / "of_counting.py"
    count = f"    open({str(folder / 'loads')!r}, 'a').write('x')\n"
    source.write_text(source.read_text().replace("def rows():\n", "def rows():\n" + count))
    return path


def loads(folder: Path) -> int:
    return len((folder / "loads").read_text())


def state(folder: Path, number: int) -> bytes:
    return (folder / "potluck-state" / "ab12" / f"state-{number}.safetensors").read_bytes()


def states(tmp_path: Path, jobs: int) -> list[bytes]:
    """The states after each job where every message is answered by a process of its own."""
    folder = tmp_path / "plain"
    path = node(folder)
    for number in range(jobs):
        NodeHost().answer(job(number), {"node-file": str(path)})
    return [state(folder, number + 1) for number in range(jobs)]


@contextmanager
def started(tmp_path: Path, *options: str) -> Iterator[tuple[WorkerLink, Path, subprocess.Popen[bytes]]]:
    path = node(tmp_path / "n")
    secret = make_secret(tmp_path / "secret")
    connection = WorkerLink(0, secret.read_bytes(), {"node-file": str(path)})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*worker_command([connection.port], secret, 1), *options]
    worker = subprocess.Popen(command, env=environment)
    try:
        yield connection, tmp_path / "n", worker
    finally:
        worker.terminate()
        worker.wait(30)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[tuple[WorkerLink, Path, subprocess.Popen[bytes]]]:
    with started(tmp_path) as connected:
        yield connected


def wait_for(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_data_and_model_are_loaded_once(
    tmp_path: Path, link: tuple[WorkerLink, Path, subprocess.Popen[bytes]]
) -> None:
    connection, folder, worker = link
    for number in range(4):
        header, reply = connection.ask(job(number))
        assert not header["error"]
        assert from_bytes(reply).facts["answer"]["trained_samples"] == 18
    assert loads(folder) == 1
    assert [state(folder, number + 1) for number in (2, 3)] == states(tmp_path, 4)[2:]
    assert len(descendants([worker.pid])) == 1


def test_a_killed_process_is_replaced_and_has_the_same_bits(
    tmp_path: Path, link: tuple[WorkerLink, Path, subprocess.Popen[bytes]]
) -> None:
    connection, folder, worker = link
    for number in range(4):
        connection.ask(job(number))
        ((process, _),) = descendants([worker.pid])
        os.kill(process, signal.SIGKILL)
    assert state(folder, 4) == states(tmp_path, 4)[3]
    assert loads(folder) == 4


def test_a_process_is_replaced_after_so_many_messages_and_has_the_same_bits(tmp_path: Path) -> None:
    with started(tmp_path, "--messages", "2") as (connection, folder, _):
        loaded = []
        for number in range(4):
            header, _ = connection.ask(job(number))
            assert header == {"error": "", "last": number % 2 == 1}
            loaded.append(loads(folder))
        assert loaded == [1, 1, 2, 2]
        assert state(folder, 4) == states(tmp_path, 4)[3]


def test_changed_code_beside_the_node_file_gets_a_new_process(
    tmp_path: Path, link: tuple[WorkerLink, Path, subprocess.Popen[bytes]]
) -> None:
    connection, folder, _ = link
    connection.ask(job(0))
    with (folder / "node.toml").open("a") as file:
        file.write("# changed\n")
    connection.ask(job(1))
    assert loads(folder) == 2
    assert state(folder, 2) == states(tmp_path, 2)[1]


def test_a_failed_job_leaves_no_client_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, host = node(tmp_path / "n"), NodeHost()
    host.answer(job(0), {"node-file": str(path)})
    assert not host.failed
    monkeypatch.setattr(Worker, "execute", lambda *_: 1 / 0)
    host.answer(job(1), {"node-file": str(path)})
    assert host.failed  # the process is replaced
    assert host.residents.take(str(tmp_path / "n" / "potluck-state" / "ab12"), 0, 1) is None


def test_a_message_of_another_app_is_refused(link: tuple[WorkerLink, Path, subprocess.Popen[bytes]]) -> None:
    connection, _, _ = link
    header, reply = connection.ask(None)
    assert not header["error"]
    assert from_bytes(reply).facts == {"refusal": "The message is not one of Potluck's."}


def test_intervals_grow_with_the_wait_and_with_the_servers_load() -> None:
    clock = [0.0]
    polling = Polling(
        0.1, 3.0, sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds), now=lambda: clock[0]
    )
    assert polling.interval() == 0.1
    polling.wait()
    clock[0] += 0.2  # the poll took so long
    assert polling.interval() == pytest.approx(1.0)
    polling.reset()
    clock[0] += 40
    polling.wait()
    assert polling.interval() == pytest.approx(0.05 * 43)
    clock[0] += 1000
    assert polling.interval() == 3.0
