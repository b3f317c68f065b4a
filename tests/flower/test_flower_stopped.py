"""A server stopped for longer than every time limit in the middle of a run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from potluck.flower.deploy.keys import make_node_key
from potluck.flower.deploy.processes import free_ports
from support.own_nodes import three_nodes
from support.real_processes import commands_in, rows, started_with, wait_for

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]

EXPERIMENT = """
[method]
name = "fedgh"
[training]
epochs = 1
[schedule]
rounds = 2
on_failure = "continue"
min_clients = 0
[engine]
name = "flower"
nodes = 2
classes = 3
wait = 500
lost_after = 60
"""


def test_a_server_that_was_stopped_finds_its_nodes_and_its_run_again(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    address, paths = f"127.0.0.1:{port}", three_nodes(tmp_path)[:2]
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    secure = ["--server", address, "--ca", "potluck-server/ca.crt"]
    with commands_in(tmp_path) as commands:
        commands.run("keys", "server", "keys", "--host", "127.0.0.1")
        commands.start("server", "server", "start", "--port", str(port))
        commands.up("server", "runner started")
        keys = [make_node_key(path.with_suffix(".key"), f"node-{i}") for i, path in enumerate(paths)]
        commands.run("register", "server", "keys", *map(str, keys), "--server", address)
        for index, path in enumerate(paths):
            commands.start(f"node-{index}", "node", "start", str(path), *secure)
        commands.start("run", "run", "experiment.toml", *secure, "--out", "run", "-q")
        ended = commands.running["run"].poll
        wait_for(lambda: rows(tmp_path / "run") or ended() is not None, "no round")
        (link,) = started_with(tmp_path, "flower-superlink")
        os.kill(link, signal.SIGSTOP)
        time.sleep(70)  # Flower takes a program for gone after 60 seconds
        os.kill(link, signal.SIGCONT)

        assert commands.running["run"].wait(500) == 0, commands.said("run")
        rounds_done = rows(tmp_path / "run")
        assert [row["round"] for row in rounds_done] == [1, 2]
        for row in rounds_done:
            seen = [*row["participants"], *(failure["client"] for failure in row["failures"])]
            assert sorted(seen) == [0, 1]  # every loss is on record
        assert rounds_done[-1]["participants"] == [0, 1]
