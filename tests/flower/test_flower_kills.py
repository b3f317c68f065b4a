"""Real processes with TLS and node keys: nodes are killed and come back."""

from __future__ import annotations

import itertools
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context as FlowerContext
from flwr.app import Error, Message, RecordDict

from potluck.experiment import parse_experiment, read_experiment
from potluck.flower.client_app import app as client_app
from potluck.flower.deploy.keys import make_node_key
from potluck.flower.deploy.processes import Processes, free_ports
from potluck.flower.deploy.serve import server_commands
from potluck.flower.server_app import serve
from support.loopgrid import Fault, LoopGrid
from support.own_nodes import three_nodes, write_node
from support.real_processes import Commands, commands_in, kill, rows, wait_for

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1500)]

ROUNDS = 500  # more than are done before the end of the test
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
nodes = 3
classes = 3
wait = 500
"""


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with commands_in(tmp_path) as running:
        yield running


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "proxy").mkdir()
    with Processes(tmp_path / "proxy") as running:
        yield running


def start_proxy(processes: Processes, folder: Path, port: int, control: int) -> None:
    """Start the proxy that a server for other machines has, here on the loopback interface; only nodes may use it."""
    served = server_commands(folder, "0.0.0.0", port, insecure=False, control=control)
    command = [word.replace("0.0.0.0", "127.0.0.1") for word in served.commands["proxy"]]
    processes.start("proxy", command)
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    wait_for(lambda: answer_of(f"https://127.0.0.1:{port}/v1/control/start-run", trust), "no proxy")
    assert answer_of(f"https://127.0.0.1:{port}/v1/control/start-run", trust) == 403
    assert answer_of(f"https://127.0.0.1:{control}/v1/control/start-run", trust) != 403


def answer_of(url: str, trust: ssl.SSLContext) -> int:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data=b""), timeout=5, context=trust
        ) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_killed_nodes_are_left_out_and_take_part_again_with_their_own_state(
    commands: Commands, processes: Processes
) -> None:
    place, (port, outside) = commands.place, free_ports(2)
    address, paths = f"127.0.0.1:{port}", three_nodes(commands.place)
    stranger = write_node(place / "n3", "node-3", "mlp-1+6", 3)
    (place / "experiment.toml").write_text(EXPERIMENT.format(rounds=ROUNDS))
    commands.run("keys", "server", "keys", "--host", "127.0.0.1")
    commands.start("server", "server", "start", "--port", str(port))
    keys = [path.with_suffix(".key") for path in [*paths, stranger]]
    public = [str(make_node_key(key, f"node-{index}")) for index, key in enumerate(keys)]
    commands.up("server", "runner started")
    commands.run("register", "server", "keys", *public[:3], "--server", address)
    start_proxy(processes, place / "potluck-server", outside, port)

    def start(index: int) -> None:
        path = str([*paths, stranger][index])
        secure = ["--server", f"127.0.0.1:{outside}", "--ca", "potluck-server/ca.crt"]
        commands.start(f"node-{index}", "node", "start", path, *secure)

    for index in range(4):
        start(index)
    commands.up("node-3", "does it know this node's key")
    commands.end("node-3")
    secure = ["--server", address, "--ca", "potluck-server/ca.crt"]
    commands.start("run", "run", "experiment.toml", *secure, "--out", "run", "-q")
    ended = commands.running["run"].poll
    wait_for(lambda: rows(place / "run") or ended() is not None, "no round")
    kill(place, "deploy.supernode", str(paths[1]))  # its supervisor lives
    commands.running["node-2"].kill()  # a machine that goes down: nobody is left to start it again
    kill(place, "deploy.supernode", str(paths[2]))
    wait_for(lambda: lost(place / "run") or ended() is not None, "nobody was missed")
    missed = len(rows(place / "run"))
    start(2)
    wait_for(lambda: all_took_part(place / "run", missed) or ended() is not None, "nobody came back")
    assert ended() is None, commands.said("run")

    rounds_done = rows(place / "run")
    assert [row["round"] for row in rounds_done] == list(range(1, len(rounds_done) + 1))
    assert [0 in row["participants"] for row in rounds_done] == [True] * len(rounds_done)
    # A node whose supervisor lives may be back before it is missed; the machine that went down is missed for certain.
    failures = {(client, kind) for _, client, kind in lost(place / "run")}
    assert failures in ({(2, "lost")}, {(1, "lost"), (2, "lost")})
    assert "node started again" in commands.said("node-1")
    # The same losses in one process give the same bits: nodes came back as they had been, not as new ones.
    # Whether a killed node had done its job, only its answer being lost, is for the node to know.
    losses = [(number, client) for number, client, _ in lost(place / "run") if number <= len(rounds_done)]
    assert any(
        without_reasons(rounds_done) == without_reasons(replayed(place, losses, len(rounds_done), did_it))
        for did_it in itertools.product([False, True], repeat=2)
    )


def all_took_part(run: Path, after: int) -> bool:
    """Whether every client took part in one of the rounds after so many."""
    return any(row["participants"] == [0, 1, 2] for row in rows(run)[after:])


def lost(run: Path) -> list[tuple[int, int, str]]:
    """(round, client, kind) of all failures so far."""
    return [
        (row["round"], failure["client"], failure["kind"]) for row in rows(run) for failure in row["failures"]
    ]


def without_reasons(round_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "failures": [(f["client"], f["kind"]) for f in row["failures"]]} for row in round_rows]


def replayed(
    place: Path, losses: list[tuple[int, int]], rounds: int, did_it: tuple[bool, ...]
) -> list[dict[str, Any]]:
    """The run on a grid in this process, with nodes of the same names, data and models.

    `did_it` says of clients 1 and 2 whether they did the first of the jobs whose answers were lost.
    """
    again = place / f"again-{did_it[0]}-{did_it[1]}"
    nodes: dict[int, dict[str, Any]] = {
        200 + index: {"node-file": str(path)} for index, path in enumerate(three_nodes(again))
    }

    def gone(message: Message) -> Message:
        return Message(Error(5, "Node unavailable"), reply_to=message)

    def gone_after_the_job(message: Message) -> Message:
        node = message.metadata.dst_node_id
        client_app(message, FlowerContext(1, node, nodes[node], RecordDict(), {}))
        return gone(message)

    faults: dict[int, list[Fault | None]] = {}
    for client, did_job in zip((1, 2), did_it, strict=True):
        numbers = [number for number, failed_client in losses if failed_client == client]
        faults[200 + client] = [gone if number in numbers else None for number in range(1, rounds + 1)]
        if numbers and did_job:
            faults[200 + client][numbers[0] - 1] = gone_after_the_job
    text = EXPERIMENT.format(rounds=rounds)
    (again / "experiment.toml").write_text(text)
    settings = parse_experiment(read_experiment(again / "experiment.toml"))
    config = {"experiment": settings.model_dump_json(exclude_none=True), "out": str(again / "replay")}
    serve(LoopGrid(nodes, {}, faults=faults), config, poll_interval=0)
    return rows(again / "replay")
