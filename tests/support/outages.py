"""What each outage costs: `make outages`. One program is stopped or killed in the middle of a run, and the run goes on.

A server, the proxy that nodes of other machines use, and three nodes with TLS and keys, all on the loopback interface.
After the third round the programs of one row of the table are stopped for a while, or killed. Recorded are the seconds
that the run took more than an undisturbed one, the answers that were lost, and how many rounds have the very bits of
the serial engine.

    python tests/support/outages.py --record results/outages.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import potluck
from potluck.experiment import parse_experiment, read_experiment
from potluck.flower.deploy.keys import make_node_key
from potluck.flower.deploy.processes import Processes, free_ports
from potluck.flower.deploy.serve import server_commands
from potluck.runs import folder
from potluck.runs.writer import provenance
from support.own_nodes import combined_federation, serial_values, three_nodes
from support.real_processes import Commands, commands_in, rows, started_with, wait_for

ROUNDS = 12
LONG = 150
"""Rounds where the others go on during the outage, so that the run is not over before it."""
STRUCK_AFTER = 3
"""Rounds that are done before the outage begins."""
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
wait = 600
lost_after = 120
"""


@dataclass(frozen=True)
class Outage:
    """Programs, by words of their command lines, and for how many seconds they are stopped (0: killed)."""

    name: str
    programs: Sequence[Sequence[str]]
    seconds: float = 0.0
    rounds: int = ROUNDS


NODE, WORKER = "deploy.supernode", "deploy.node_worker"
OUTAGES = [
    Outage("none", []),
    Outage("the server (Flower's SuperLink), stopped for 120 s", [["flower-superlink"]], 120),
    Outage("the run's own process, stopped for 120 s", [["flwr-serverapp"]], 120),
    Outage("the proxy that nodes connect to, stopped for 120 s", [["fleet_proxy"]], 120),
    Outage("all nodes, stopped for 100 s", [[NODE], [WORKER]], 100),
    Outage("one node, stopped for 30 s", [[NODE, "/n1/"], [WORKER, "/n1/"]], 30),
    Outage("one node, stopped for 100 s", [[NODE, "/n1/"], [WORKER, "/n1/"]], 100, LONG),
    Outage("the server (Flower's SuperLink), killed", [["flower-superlink"]]),
    Outage("the run's own process, killed", [["flwr-serverapp"]]),
    Outage("a node's connection, killed", [[NODE, "/n1/"]]),
    Outage("a node's worker, killed", [[WORKER, "/n1/"]]),
    Outage("the command that submitted the run, killed", [["potluck.cli", "run", "experiment.toml"]]),
]


def start(commands: Commands, proxies: Processes, rounds: int) -> list[Path]:
    """Start server, proxy, nodes and run, and wait for the first rounds; gives the nodes' files."""
    place, (port, outside) = commands.place, free_ports(2)
    inside, address = f"127.0.0.1:{port}", f"127.0.0.1:{outside}"
    paths, trust = three_nodes(place), ["--ca", "potluck-server/ca.crt"]
    (place / "experiment.toml").write_text(EXPERIMENT.format(rounds=rounds))
    commands.run("keys", "server", "keys", "--host", "127.0.0.1")
    commands.start("server", "server", "start", "--port", str(port))
    commands.up("server", "runner started")
    keys = [make_node_key(path.with_suffix(".key"), f"node-{i}") for i, path in enumerate(paths)]
    commands.run("register", "server", "keys", *map(str, keys), "--server", inside)
    served = server_commands(place / "potluck-server", "0.0.0.0", outside, insecure=False, control=port)
    proxies.start("proxy", [word.replace("0.0.0.0", "127.0.0.1") for word in served.commands["proxy"]])
    for index, path in enumerate(paths):
        commands.start(f"node-{index}", "node", "start", str(path), "--server", address, *trust)
    commands.start("run", "run", "experiment.toml", "--server", inside, *trust, "--out", "run", "-q")
    ended = commands.running["run"].poll
    wait_for(lambda: len(rows(place / "run")) >= STRUCK_AFTER or ended() is not None, "no round")
    return paths


def strike(place: Path, outage: Outage) -> None:
    """Kill the programs of an outage, or stop them for a while."""
    struck = [process for words in outage.programs for process in started_with(place, *words)]
    for process in struck:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP if outage.seconds else signal.SIGKILL)
    time.sleep(outage.seconds)
    for process in struck if outage.seconds else []:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def measure(outage: Outage) -> dict[str, Any]:
    """Go through one outage; gives what it cost."""
    place = Path(tempfile.mkdtemp(prefix="potluck-outage-"))
    (place / "proxy").mkdir()
    with commands_in(place) as commands, Processes(place / "proxy", {"POTLUCK_TEST": str(place)}) as proxies:
        paths, began = start(commands, proxies, outage.rounds), time.monotonic()
        strike(place, outage)
        wait_for(lambda: (place / "run" / folder.SUMMARY).exists(), commands.said("run"))
        seconds = time.monotonic() - began
    done, same = rows(place / "run"), same_rounds(place, paths)
    shutil.rmtree(place)
    return {
        "outage": outage.name,
        "rounds": len(done),
        "same": same,
        "lost": sum(len(row["failures"]) for row in done),
        "rounds with losses": sum(bool(row["failures"]) for row in done),
        "last round has all": done[-1]["participants"] == [0, 1, 2],
        "seconds": round(seconds),
        "commit": provenance().get("commit", "unknown"),
        "load": round(os.getloadavg()[1], 1),
    }


def same_rounds(place: Path, paths: list[Path]) -> int:
    """Return how many rounds have the bits of the serial engine."""
    experiment = parse_experiment(read_experiment(place / "experiment.toml"))
    federation = combined_federation(experiment, paths)
    serial = potluck.run(serial_values(experiment), federation=federation, out=place / "serial")
    expected = [{**row, "seconds": 0} for row in serial.rounds]
    return sum(row == other for row, other in zip(rows(place / "run"), expected, strict=True))


def main() -> None:
    """Go through the outages one by one, and write down what they cost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--record", type=Path, help="where the table is kept")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of outages; else all")
    given = parser.parse_args()
    chosen = OUTAGES if given.only is None else [OUTAGES[number] for number in given.only]
    results = []
    for outage in chosen:
        results.append(measure(outage))
        print(json.dumps(results[-1]), flush=True)
    if given.record:
        record(given.record, results)
    sys.exit(not all(result["last round has all"] for result in results))


def record(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """Write results, each in the place of an earlier one of the same outage."""
    stored = json.loads(path.read_text(encoding="utf-8"))["outages"] if path.exists() else []
    by_name = {row["outage"]: row for row in [*stored, *results]}
    rows_in_order = [by_name[outage.name] for outage in OUTAGES if outage.name in by_name]
    text = json.dumps({"outages": rows_in_order, "flwr": metadata.version("flwr")}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
