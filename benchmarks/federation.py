"""Time rounds across processes: `python -m benchmarks.federation --store results/bench.csv`, where Flower is installed.

The pool, `--engine flower`, nodes with their own data, and an empty Flower app.

Rounds of FedGH on small networks take milliseconds of computing, so what is measured is what a round costs besides.
A node's memory is its share of the pages it uses (PSS); idle is a node that is connected and has no run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.results import Row, Spread, store_rows
from potluck.core.errors import PotluckError
from potluck.flower.deploy.processes import (
    Processes,
    descendants,
    free_ports,
    program_path,
    require_flower,
    wait_until_up,
)
from potluck.flower.deploy.submit import connect, run_flwr
from potluck.flower.node.config import TEMPLATE
from potluck.runs.folder import ROUNDS

PART = "a round across processes"
SCALE = "many nodes at one server"
NODES = 3
FEW, MANY = 4, 12
"""Rounds of a quick and of a full measurement; the first three are not counted."""
SMALL = ("--set", "data.limit=300", "--set", "training.epochs=1", "--quiet")
MANY_SMALL = ("--set", "partition.rule=iid", "--set", "training.epochs=1")
POTLUCK = (sys.executable, "-c", "from potluck.cli import main; main()")
EXPERIMENT = """
[method]
name = "fedgh"
[training]
epochs = 1
[schedule]
rounds = {rounds}
[engine]
name = "flower"
nodes = {nodes}
classes = 3
wait = 500
"""
ROWS = """
import torch

def rows():
    generator = torch.Generator().manual_seed({seed})
    y = torch.arange(24) % 3
    return torch.randn(24, 4, generator=generator) + y[:, None], y
"""
EMPTY_APP = """
import time
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
client = ClientApp()

@client.train()
def answer(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid: Grid, context: Context) -> None:
    while len(nodes := list(grid.get_node_ids())) < {nodes}:
        time.sleep(0.2)
    for _ in range({rounds}):
        began = time.monotonic()
        sent = set(grid.push_messages([Message(RecordDict(), node, "train") for node in nodes]))
        while sent:
            sent -= {{reply.metadata.reply_to_message_id for reply in grid.pull_messages(sent)}}
            time.sleep(0.05)
        with open({out!r}, "a") as file:
            print(time.monotonic() - began, file=file)
"""
EMPTY_PROJECT = """
[project]
name = "empty-app"
version = "1.0.0"
description = "Messages without content."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "potluck"
[tool.flwr.app.components]
serverapp = "empty_app:server"
clientapp = "empty_app:client"
"""


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Seconds of a round in each way, then memory and idle processor time of a node."""
    require_flower()
    rounds, clients = (FEW, 3) if quick else (MANY, 10)
    pool = _command_rounds("pool", rounds, clients, "--workers", "2")
    flower = _command_rounds("flower", rounds, clients)
    yield Row(PART, f"pool, {clients} clients", pool, "s")
    yield Row(PART, f"--engine flower, {clients} clients on one machine", flower, "s", pool.median + 1)
    yield Row(PART, f"an empty Flower app, {NODES} SuperNodes", _empty_rounds(FEW), "s")
    own, idle = _own_rounds(rounds, NODES, 5.0 if quick else 30.0)
    yield Row(PART, f"{NODES} nodes with their own data", own, "s", 1.0)
    yield Row(PART, f"processor time of server and {NODES} nodes", Spread.of([idle["round"]]), "s")
    yield Row(PART, "memory of an idle node", Spread.of([idle["memory"]]), "MB")
    yield Row(PART, "processor time of an idle node, of a core", Spread.of([idle["share"]]), "%")


def _command_rounds(engine: str, rounds: int, clients: int, *more: str) -> Spread:
    with TemporaryDirectory() as folder:
        options = ("--engine", engine, "--clients", str(clients), "--rounds", str(rounds), *more, *SMALL)
        command = [*POTLUCK, "run", "fedgh", *options, "--out", "run"]
        process = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=1800
        )
        if process.returncode:
            raise PotluckError(f"The run on {engine} failed: {process.stderr[-500:]}")
        return _seconds(Path(folder) / "run")


def _seconds(run: Path) -> Spread:
    lines = (run / ROUNDS).read_text(encoding="utf-8").splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    return Spread.of(seconds[min(3, len(seconds) - 1) :])


@contextmanager
def _programs() -> Iterator[tuple[Processes, Path]]:
    with TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        yield processes, Path(folder)


def _own_rounds(rounds: int, count: int, idle_seconds: float) -> tuple[Spread, dict[str, float]]:
    with _programs() as (processes, place):
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        own = ["--folder", str(place / "server"), "--insecure", "--port", str(port)]
        processes.start("server", [*POTLUCK, "server", "start", *own])
        wait_until_up(processes, address)
        for index in range(count):
            path = _write_node(place / f"n{index}", index)
            start = [*POTLUCK, "node", "start", str(path), "--server", address, "--insecure"]
            processes.start(f"node-{index}", start)
        (place / "experiment.toml").write_text(EXPERIMENT.format(rounds=rounds, nodes=count))
        command = [
            *POTLUCK,
            "run",
            str(place / "experiment.toml"),
            "--server",
            address,
            "--out",
            str(place / "run"),
        ]
        processes.start("run", [*command, "-q"])
        used = _processor_time_of_a_round(processes, place / "run" / ROUNDS, rounds)
        if processes.running.pop("run").wait(1800):
            raise PotluckError(f"The run of own nodes failed: {processes.last_error('run')}")
        nodes = [process.pid for name, process in processes.running.items() if name != "server"]
        return _seconds(place / "run"), {"round": used, **_idle(nodes, idle_seconds)}


def _processor_time_of_a_round(processes: Processes, path: Path, rounds: int) -> float:
    """Return the processor seconds of server and nodes between the first round and the last but one, per round."""
    seen: list[tuple[int, float]] = []
    while not seen or seen[-1][0] < rounds - 1:
        if processes.running["run"].poll() is not None:
            raise PotluckError(f"The run of own nodes ended early: {processes.last_error('run')}")
        rounds_done = len(path.read_text().splitlines()) if path.exists() else 0
        roots = [process.pid for name, process in processes.running.items() if name != "run"]
        if rounds_done and (not seen or rounds_done > seen[-1][0]):
            everything = [*roots, *(process for process, _ in descendants(roots))]
            seen.append((rounds_done, sum(map(_processor_seconds, everything))))
        time.sleep(0.1)
    (first, before), (last, after) = seen[0], seen[-1]
    return (after - before) / max(1, last - first)


def _write_node(folder: Path, index: int) -> Path:
    folder.mkdir(parents=True)
    module = f"rows_of_{index}"
    (folder / f"{module}.py").write_text(ROWS.format(seed=index))
    path = folder / "node.toml"
    path.write_text(TEMPLATE.format(name=f"node-{index}", model="mlp-1+6", source=f"{module}:rows"))
    return path


def _idle(nodes: list[int], seconds: float) -> dict[str, float]:
    """Megabytes and share of a core, of one node with all its processes."""
    everything = [*nodes, *(process for process, _ in descendants(nodes))]
    before = sum(map(_processor_seconds, everything))
    time.sleep(seconds)
    used = sum(map(_processor_seconds, everything)) - before
    memory = sum(map(_shared_memory, everything))
    return {"memory": memory / len(nodes), "share": 100 * used / seconds / len(nodes)}


def _processor_seconds(process: int) -> float:
    with suppress(OSError):
        parts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _shared_memory(process: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _empty_rounds(rounds: int) -> Spread:
    """Rounds of an app whose messages are empty, with Flower's own programs and defaults."""
    with _programs() as (processes, place):
        app, out = place / "app", place / "seconds"
        app.mkdir()
        (app / "pyproject.toml").write_text(EMPTY_PROJECT)
        (app / "empty_app.py").write_text(EMPTY_APP.format(nodes=NODES, rounds=rounds, out=str(out)))
        port, *node_ports = free_ports(1 + NODES)
        link = [
            "--insecure",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--disable-runtime-dependency-installation",
        ]
        processes.start("server", [program_path("flower-superlink"), *link])
        address = f"127.0.0.1:{port}"
        wait_until_up(processes, address)
        for index, own in enumerate(node_ports):
            node: list[Any] = ["--insecure", "--superlink", address, "--host", "127.0.0.1", "--port", own]
            processes.start(f"node-{index}", [program_path("flower-supernode"), *map(str, node)])
        connect(processes, address, "")
        run_flwr(processes, "run", str(app))
        ends = time.monotonic() + 900
        while time.monotonic() < ends:
            if out.exists() and len(lines := out.read_text().splitlines()) >= rounds:
                return Spread.of([float(line) for line in lines[1:]])
            time.sleep(1)
        raise PotluckError(f"The empty Flower app did not end: {processes.last_error('server')}")


def measure_many(clients: int) -> Iterator[Row]:
    """Seconds of a round, and memory, with so many SuperNodes at one SuperLink on this machine."""
    rounds, name = 6, f"{clients} SuperNodes at one SuperLink"
    with TemporaryDirectory() as folder:
        asked = ("--engine", "flower", "--clients", str(clients), "--rounds", str(rounds))
        command = [*POTLUCK, "run", "fedgh", *asked, *MANY_SMALL, "-q", "--out", "run"]
        path = Path(folder) / "run" / ROUNDS
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
            memory: dict[str, float] = {}
            while process.poll() is None:
                if path.exists() and len(path.read_text().splitlines()) >= rounds - 1 and not memory:
                    memory = _memory_by_program([process.pid])
                time.sleep(0.2)
        if process.returncode or not memory:
            raise PotluckError(f"{name} did not run to the end (exit code {process.returncode}).")
        yield Row(SCALE, f"{name}: a round", _seconds(Path(folder) / "run"), "s")
    yield Row(SCALE, f"{name}: memory of a SuperNode", Spread.of([memory["supernode"] / clients]), "MB")
    yield Row(SCALE, f"{name}: memory of the SuperLink", Spread.of([memory["superlink"]]), "MB")
    yield Row(SCALE, f"{name}: memory of everything", Spread.of([sum(memory.values())]), "MB")


def _memory_by_program(roots: list[int]) -> dict[str, float]:
    memory = {"supernode": 0.0, "superlink": 0.0, "other": 0.0}
    for process in [*roots, *(child for child, _ in descendants(roots))]:
        with suppress(OSError):
            command = Path(f"/proc/{process}/cmdline").read_bytes().decode()
            name = next((name for name in ("supernode", "superlink") if name in command), "other")
            memory[name] += _shared_memory(process)
    return memory


def main(
    quick: Annotated[bool, typer.Option("--quick", help="shows that everything works")] = False,
    nodes: Annotated[
        list[int] | None, typer.Option("--nodes", help="measure so many SuperNodes instead; repeatable")
    ] = None,
    store: Annotated[Path | None, typer.Option("--store", help="table to keep the rows in")] = None,
) -> None:
    """Time rounds across processes; about five minutes on two free cores."""
    rows = []
    for row in (row for count in nodes for row in measure_many(count)) if nodes else measure(quick=quick):
        rows.append(row)
        typer.echo(str(row))
    if store is not None:
        store_rows(store, rows)


if __name__ == "__main__":
    typer.run(main)
