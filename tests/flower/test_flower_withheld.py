"""Real processes: a node that withholds its answers, and all nodes stopped for a while, cost the others no round."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from potluck.flower.deploy.processes import free_ports
from support.own_nodes import three_nodes, write_withholding
from support.real_processes import commands_in, rows, started_with, wait_for

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]

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
nodes = 3
classes = 3
wait = 250
upload_grace = 2
lost_after = 20
"""


def test_withheld_answers_and_stopped_nodes_cost_the_others_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    address, paths = f"127.0.0.1:{port}", three_nodes(tmp_path)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    hostile = write_withholding(tmp_path / "hostile")
    with commands_in(tmp_path) as commands:
        commands.start("server", "server", "start", "--insecure", "--port", str(port))
        commands.up("server", "runner started")
        for index, path in enumerate(paths):
            with monkeypatch.context() as patch:
                if index == 1:
                    patch.syspath_prepend(hostile)
                commands.start(f"node-{index}", "node", "start", str(path), "--server", address, "--insecure")
        commands.start("run", "run", "experiment.toml", "--server", address, "--out", "run", "-q")
        ended = commands.running["run"].poll
        wait_for(lambda: rows(tmp_path / "run") or ended() is not None, "no round")
        stopped = [
            process
            for program in ("deploy.supernode", "deploy.node_worker")
            for process in started_with(tmp_path, program)
        ]
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        time.sleep(8)
        for process in stopped:
            os.kill(process, signal.SIGCONT)
        assert commands.running["run"].wait(500) == 0, commands.said("run")

    rounds_done = rows(tmp_path / "run")
    assert [row["participants"] for row in rounds_done] == [[0, 2]] * 4
    reasons = [failure["reason"] for row in rounds_done for failure in row["failures"]]
    assert [failure["client"] for row in rounds_done for failure in row["failures"]] == [1] * 4
    assert "its answer was announced, and in" in reasons[0]
    assert "left out for another" in reasons[-1]
