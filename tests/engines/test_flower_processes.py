"""Real Flower processes on this machine: everything is started here, on ports of its own, and gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from own_nodes import three_nodes, together

pytest.importorskip("flwr")

import potluck
from potluck.deploy.processes import free_ports
from potluck.experiment import parse_experiment, read_experiment
from potluck.runs import folder

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1500)]

POTLUCK = [sys.executable, "-c", "from potluck.cli import main; main()"]
PATIENCE = 600.0


class Commands:
    """Potluck commands that run beside the test, each with its output in a file."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths, "POTLUCK_TEST": str(self.place)}
        with open(self.place / f"{name}.out", "wb") as output:
            self.running[name] = subprocess.Popen(
                [*POTLUCK, *arguments],
                cwd=self.place,
                env=environment,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: signal.signal(
                    signal.SIGINT, signal.SIG_DFL
                ),  # a background shell ignores it
            )
        return self.running[name]

    def said(self, name: str) -> str:
        return (self.place / f"{name}.out").read_text(errors="replace")

    def run(self, name: str, *arguments: str) -> str:
        code = self.start(name, *arguments).wait(PATIENCE)
        assert code == 0, self.said(name)
        return self.said(name)

    def end(self, name: str) -> int:
        process = self.running[name]
        process.send_signal(signal.SIGTERM)
        return process.wait(60)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with no_processes_left(tmp_path):
        ours = Commands(tmp_path)
        try:
            yield ours
        finally:
            for process in ours.running.values():
                with suppress(subprocess.TimeoutExpired):
                    process.terminate()
                    process.wait(60)
                process.kill()


@contextmanager
def no_processes_left(place: Path) -> Iterator[None]:
    """Everything started by a test carries its folder in the environment; nothing of it may outlive the test."""
    try:
        yield
    finally:
        time.sleep(3)
        left = started_in(place)
        for process in left:
            os.kill(process, signal.SIGKILL)
    assert left == []


def started_in(place: Path) -> list[int]:
    mark, found = f"POTLUCK_TEST={place}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def wait_for(what: Callable[[], Any], why: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < ends, why
        time.sleep(0.5)


SMALL = ["--clients", "2", "--set", "data.limit=90", "--set", "training.epochs=1", "--quiet"]


def rows(path: Path) -> list[dict[str, Any]]:
    return [{**row, "seconds": 0} for row in folder.read_lines(path / folder.ROUNDS)]


def test_all_on_one_machine_has_the_bits_of_the_serial_engine(commands: Commands) -> None:
    commands.run("flower", "run", "fedgh", "--engine", "flower", "--rounds", "2", "--out", "flower", *SMALL)
    commands.run("serial", "run", "fedgh", "--engine", "serial", "--rounds", "2", "--out", "serial", *SMALL)

    assert rows(commands.place / "flower") == rows(commands.place / "serial")


def test_interrupt_stops_everything(commands: Commands) -> None:
    process = commands.start("flower", "run", "fedgh", "--engine", "flower", "--out", "run", *SMALL)
    wait_for(lambda: len(started_in(commands.place)) >= 6, "the nodes did not start")

    process.send_signal(signal.SIGINT)

    assert process.wait(60) == 130
    wait_for(lambda: not started_in(commands.place), "something is still running")


EXPERIMENT = """
[method]
name = "fedgh"
[training]
epochs = 1
[schedule]
rounds = 4
on_failure = "continue"
[engine]
name = "flower"
nodes = 2
classes = 3
wait = 500
"""


def test_registered_nodes_only_and_the_run_goes_on_when_one_is_killed(commands: Commands) -> None:
    place, (port,) = commands.place, free_ports(1)
    address, paths = f"127.0.0.1:{port}", three_nodes(commands.place)
    (place / "experiment.toml").write_text(EXPERIMENT)
    commands.run("keys", "server", "keys", "--host", "127.0.0.1")
    commands.start("server", "server", "start", "--port", str(port))
    wait_for(lambda: "runner started" in commands.said("server"), commands.said("server"))
    for index in range(3):
        key = paths[index].with_suffix(".key")
        make_key(key)
        if index != 2:
            public = str(key.with_name("node.key.pub"))
            commands.run(f"register-{index}", "server", "keys", public, "--server", address)
    for index, path in enumerate(paths):
        ca = str(place / "potluck-server" / "ca.crt")
        commands.start(f"node-{index}", "node", "start", str(path), "--server", address, "--ca", ca)

    commands.start(
        "run",
        "run",
        "experiment.toml",
        "--server",
        address,
        "--ca",
        "potluck-server/ca.crt",
        "--out",
        "run",
        "-q",
    )
    wait_for(lambda: rows(place / "run") or commands.running["run"].poll() is not None, "no round")
    commands.end("node-1")
    assert commands.running["run"].wait(PATIENCE) == 0, commands.said("run")

    done = rows(place / "run")
    assert [row["round"] for row in done] == [1, 2, 3, 4]
    assert done[0]["participants"] == [0, 1]
    assert done[-1]["participants"] == [0]
    assert {(f["client"], f["kind"]) for row in done for f in row["failures"]} == {(1, "lost")}
    summary = json.loads((place / "run" / folder.SUMMARY).read_text())
    assert summary["clients"] == 2
    assert "node ended with code" in commands.said("node-2")  # its key is not known to the server


def make_key(path: Path) -> None:
    from potluck.deploy.keys import make_node_key

    make_node_key(path)


def test_a_killed_server_app_is_resumed_with_the_same_bits(commands: Commands) -> None:
    place, (port,) = commands.place, free_ports(1)
    address, paths = f"127.0.0.1:{port}", three_nodes(commands.place)[:2]
    (place / "experiment.toml").write_text(EXPERIMENT)
    commands.start("server", "server", "start", "--insecure", "--port", str(port))
    wait_for(lambda: "runner started" in commands.said("server"), commands.said("server"))
    for index, path in enumerate(paths):
        commands.start(f"node-{index}", "node", "start", str(path), "--server", address, "--insecure")

    commands.start("run", "run", "experiment.toml", "--server", address, "--out", "run", "-q")
    wait_for(lambda: rows(place / "run") or commands.running["run"].poll() is not None, "no round")
    for process in started_in(place):
        if b"flwr-serverapp" in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGKILL)
    commands.end("run")
    commands.run("resume", "resume", "run", "-q")

    one = parse_experiment(read_experiment(place / "experiment.toml"))
    serial = potluck.run(
        {**one.model_dump(exclude_none=True), "engine": {"name": "serial"}},
        federation=together(one, paths),
        out=place / "serial",
    )
    assert rows(place / "run") == [{**row, "seconds": 0} for row in serial.rounds]
