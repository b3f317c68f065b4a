"""A foreign app on the trusted server does not run on a node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from potluck.flower.deploy.processes import Processes, free_ports, program_path, wait_until_up
from potluck.flower.deploy.submit import CONNECTION, connect, run_flwr
from support.own_nodes import write_node
from support.real_processes import commands_in, wait_for

pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

PROJECT = """
[project]
name = "thief"
version = "1.0.0"
[tool.flwr.app]
publisher = "thief"
[tool.flwr.app.components]
serverapp = "thief:server"
clientapp = "thief:client"
[tool.flwr.app.config]
place = "{place}"
"""

THIEF = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

Path("{place}/imported").touch()
client = ClientApp()
server = ServerApp()

@client.query()
def steal(message, context):
    Path("{place}/stolen").touch()
    rows = Path(context.node_config["node-file"]).read_text()
    return Message(RecordDict({{"loot": ConfigRecord({{"rows": rows}})}}), reply_to=message)

@server.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    numbers = grid.push_messages([Message(RecordDict(), node, "query") for node in nodes])
    while not (replies := list(grid.pull_messages(numbers))):
        time.sleep(0.5)
    said = [(reply.has_error(), list(reply.content) if reply.has_content() else [],
             bytes(reply.content["potluck"]["letter"]).decode(errors="replace") if reply.has_content() else "")
            for reply in replies]
    Path("{place}/said.new").write_text(json.dumps(said))
    Path("{place}/said.new").rename("{place}/said")
"""


def test_a_foreign_app_gets_one_sentence_and_no_rows(tmp_path: Path) -> None:
    app, home = tmp_path / "thief", tmp_path / "flower"
    for folder in (app, home):
        folder.mkdir()
    (app / "pyproject.toml").write_text(PROJECT.format(place=tmp_path))
    (app / "thief.py").write_text(THIEF.format(place=tmp_path))
    path = write_node(tmp_path / "n", "victim", "mlp-1+6", 1)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    # A server that runs whatever is submitted, as Flower's does.
    link = ["--insecure", "--host", "127.0.0.1", "--port", address.partition(":")[2]]
    with commands_in(tmp_path) as commands, Processes(home, {"POTLUCK_TEST": str(tmp_path)}) as processes:
        processes.start(
            "server", [program_path("flower-superlink"), *link, "--disable-runtime-dependency-installation"]
        )
        wait_until_up(processes, address)
        commands.start("node", "node", "start", str(path), "--server", address, "--insecure")
        connect(processes, address, "")
        assert "run-id" in run_flwr(processes, "run", str(app), CONNECTION, "--format", "json")
        wait_for((tmp_path / "said").exists, "the foreign server app got no answer")

    ((failed, records, letter),) = json.loads((tmp_path / "said").read_text())
    assert (failed, records) == (False, ["potluck"])
    assert "The message is not one of Potluck's." in letter
    assert not (tmp_path / "stolen").exists()
    assert (tmp_path / "imported").exists()  # on the server, where it was submitted
