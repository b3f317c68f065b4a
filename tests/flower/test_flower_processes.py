"""Real Flower processes on free ports of this machine, all ended afterwards.

The shorter ones run wherever Flower is installed, the longer ones with `make test-flower`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import potluck
from potluck.experiment import parse_experiment, read_experiment
from potluck.flower.deploy.processes import free_ports
from support.own_nodes import combined_federation, serial_values, three_nodes
from support.real_processes import Commands, commands_in, kill, rows, started_in, wait_for

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with commands_in(tmp_path) as running:
        yield running


SMALL = ["--clients", "2", "--set", "data.limit=90", "--set", "training.epochs=1", "--quiet"]


def test_all_on_one_machine_has_the_bits_of_the_serial_engine(commands: Commands) -> None:
    commands.run("flower", "run", "fedgh", "--engine", "flower", "--rounds", "2", "--out", "flower", *SMALL)
    commands.run("serial", "run", "fedgh", "--engine", "serial", "--rounds", "2", "--out", "serial", *SMALL)

    assert rows(commands.place / "flower") == rows(commands.place / "serial")


def test_interrupt_stops_everything(commands: Commands) -> None:
    process = commands.start("flower", "run", "fedgh", "--engine", "flower", "--out", "run", *SMALL)
    wait_for(lambda: len(started_in(commands.place)) >= 6, "the nodes did not start")

    process.send_signal(signal.SIGINT)

    assert process.wait(60) == 130
    assert started_in(commands.place) == []


EXPERIMENT = """
[method]
name = "fedgh"
[training]
epochs = 1
[schedule]
rounds = 3
on_failure = "continue"
[engine]
name = "flower"
nodes = 2
classes = 3
wait = 500
"""


@pytest.mark.flower
def test_a_killed_server_app_is_resumed_with_the_same_bits(commands: Commands) -> None:
    place, (port,) = commands.place, free_ports(1)
    address, paths = f"127.0.0.1:{port}", three_nodes(commands.place)[:2]
    (place / "experiment.toml").write_text(EXPERIMENT)
    commands.start("server", "server", "start", "--insecure", "--port", str(port))
    commands.up("server", "runner started")
    for index, path in enumerate(paths):
        commands.start(f"node-{index}", "node", "start", str(path), "--server", address, "--insecure")

    commands.start("run", "run", "experiment.toml", "--server", address, "--out", "run", "-q")
    wait_for(lambda: rows(place / "run") or commands.running["run"].poll() is not None, "no round")
    kill(place, "flwr-serverapp")
    commands.end("run")
    commands.run("resume", "resume", "run", "-q")

    settings = parse_experiment(read_experiment(place / "experiment.toml"))
    serial = potluck.run(
        serial_values(settings),
        federation=combined_federation(settings, paths),
        out=place / "serial",
    )
    assert rows(place / "run") == [{**row, "seconds": 0} for row in serial.rounds]
