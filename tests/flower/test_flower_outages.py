"""Real processes: a full disk, a killed submitter and a node that was stopped lose no round and no answer."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import potluck
from potluck.experiment import parse_experiment, read_experiment
from potluck.flower.deploy.processes import free_ports
from potluck.runs import folder
from support.own_nodes import combined_federation, serial_values, three_nodes
from support.real_processes import Commands, commands_in, rows, started_with, wait_for

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]

EXPERIMENT = """
[method]
name = "fedgh"
[training]
epochs = 1
[schedule]
rounds = {rounds}
on_failure = "continue"
[engine]
name = "flower"
nodes = 2
classes = 3
wait = 500
lost_after = {lost_after}
"""


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with commands_in(tmp_path) as running:
        yield running


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def start(commands: Commands, rounds: int, lost_after: float = 300, state: Path | None = None) -> list[Path]:
    """A server, two nodes and a run; the first node's state is in `state`."""
    place, (port,) = commands.place, free_ports(1)
    address, paths = f"127.0.0.1:{port}", three_nodes(place)[:2]
    if state is not None:
        text = paths[0].read_text().replace('state = "potluck-state"', f'state = "{state}"')
        paths[0].write_text(text)
    (place / "experiment.toml").write_text(EXPERIMENT.format(rounds=rounds, lost_after=lost_after))
    commands.start("server", "server", "start", "--insecure", "--port", str(port))
    commands.up("server", "runner started")
    for index, path in enumerate(paths):
        commands.start(f"node-{index}", "node", "start", str(path), "--server", address, "--insecure")
    commands.start("run", "run", "experiment.toml", "--server", address, "--out", "run", "-q")
    ended = commands.running["run"].poll
    wait_for(lambda: rows(place / "run") or ended() is not None, "no round")
    return paths


def has_the_bits_of_one_process(commands: Commands, paths: list[Path]) -> bool:
    settings = parse_experiment(read_experiment(commands.place / "experiment.toml"))
    federation = combined_federation(settings, paths)
    serial = potluck.run(serial_values(settings), federation=federation, out=commands.place / "serial")
    return rows(commands.place / "run") == [{**row, "seconds": 0} for row in serial.rounds]


def fill(path: Path) -> None:
    """Write to a file until no page is left."""
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_full_disk_is_waited_for_and_a_killed_submitter_is_not_missed(
    commands: Commands, disk: Path
) -> None:
    place = commands.place
    paths = start(commands, 12, state=disk / "state")
    filler = disk / "filler"
    fill(filler)
    commands.running["run"].send_signal(signal.SIGKILL)
    commands.up("node-0", "is full; jobs wait until there is space")
    before = len(rows(place / "run"))
    time.sleep(8)
    assert len(rows(place / "run")) <= before + 1
    assert before < 12

    filler.unlink()
    wait_for(lambda: (place / "run" / folder.SUMMARY).exists(), "the run did not end")

    assert "There is space on the disk" in commands.said("node-0")
    assert [row["failures"] for row in rows(place / "run")] == [[]] * 12
    assert has_the_bits_of_one_process(commands, paths)


def test_a_node_that_was_stopped_for_100_seconds_is_in_the_next_round(commands: Commands) -> None:
    """Flower counts a node as gone after 60 seconds, so that the job in it is sent again."""
    place = commands.place
    paths = start(commands, 500, lost_after=200)  # more than are done before the end of the test
    stopped = [
        *started_with(place, "deploy.supernode", str(paths[1])),
        *started_with(place, "deploy.node_worker", str(paths[1].parent)),
    ]
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    time.sleep(100)
    missed = len(rows(place / "run"))
    for process in stopped:
        os.kill(process, signal.SIGCONT)
    until = time.monotonic() + 60
    while not any(1 in row["participants"] for row in rows(place / "run")[missed:]):
        assert time.monotonic() < until, rows(place / "run")[-1]["failures"]
        assert commands.running["run"].poll() is None, commands.said("run")
        time.sleep(0.5)
