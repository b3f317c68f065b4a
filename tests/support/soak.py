"""A federation under fire: `make soak`. Programs are killed and stopped at random while a run goes on.

A server and three nodes with TLS, node keys and names, all on the loopback interface. Every half minute one of their
programs is killed, or stopped for a while: which one is drawn, each in both ways before one comes again. In the end the
run must have all its rounds, and every client must be in every round: among the participants, or with the reason why not.

    python tests/support/soak.py --minutes 30 --seed 1 --record results/soak.json

With `--hostile` the last node withholds half of its answers for a minute each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from potluck.flower.deploy.keys import make_node_key
from potluck.flower.deploy.processes import free_ports
from potluck.flower.node.audit import AuditLog
from potluck.flower.node.config import read_node
from potluck.runs import folder
from potluck.runs.writer import provenance
from support.own_nodes import several_nodes, write_withholding
from support.real_processes import Commands, commands_in, rows, started_with, wait_for

EXPERIMENT = """
[method]
name = "fedgh"
[training]
epochs = 1
[schedule]
rounds = {rounds}
on_failure = "continue"
min_clients = 0
[engine]
name = "flower"
nodes = {nodes}
classes = 3
wait = 600
lost_after = 120
upload_grace = 5
"""
SECURE_SUMS = """
[privacy]
secure_sums = true
sum_clients = 2
"""
PROGRAMS = {
    "the server": ["flower-superlink"],
    "the runner": ["flower-superexec"],
    "the server's app": ["flwr-serverapp"],
}
WAYS = ("killed", "stopped")
STOPS = (10.0, 75.0)
"""Seconds for which a program is stopped: below and above what Flower takes for gone."""


def programs(nodes: int) -> dict[str, list[str]]:
    """Each program's name, and the words of its command line."""
    return {
        **PROGRAMS,
        **{f"node {i}": ["deploy.supernode", f"/n{i}/"] for i in range(nodes)},
        **{f"the worker of node {i}": ["deploy.node_worker", f"/n{i}/"] for i in range(nodes)},
    }


class Soak:
    """The federation, the faults so far, and what is stopped at present."""

    def __init__(
        self,
        commands: Commands,
        rounds: int,
        seed: int,
        *,
        nodes: int = 3,
        sums: bool = False,
        hostile: bool = False,
    ) -> None:
        self.commands, self.place = commands, commands.place
        self.nodes, self.hostile, self.programs = nodes, hostile, programs(nodes)
        self.random, self.faults = random.Random(seed), Counter[str]()
        self.ahead: list[tuple[str, str]] = []
        self.asleep: list[tuple[float, int]] = []
        (port,) = free_ports(1)
        self.address, self.paths = f"127.0.0.1:{port}", several_nodes(self.place, nodes)
        text = EXPERIMENT.format(rounds=rounds, nodes=nodes)
        if sums:
            text = text.replace('"fedgh"', '"fedproto"') + SECURE_SUMS
        (self.place / "experiment.toml").write_text(text)
        self.secure = ["--server", self.address, "--ca", "potluck-server/ca.crt"]
        commands.run("keys", "server", "keys", "--host", "127.0.0.1")
        commands.start("server", "server", "start", "--port", str(port))
        commands.up("server", "runner started")
        keys = [make_node_key(path.with_suffix(".key"), f"node-{i}") for i, path in enumerate(self.paths)]
        commands.run("register", "server", "keys", *map(str, keys), "--server", self.address)
        for index, path in enumerate(self.paths):
            if hostile and index == nodes - 1:
                sys.path.insert(0, write_withholding(self.place / "hostile", share=0.5, seconds=60))
            commands.start(f"node-{index}", "node", "start", str(path), *self.secure)
        if hostile:
            sys.path.pop(0)
        commands.start("run", "run", "experiment.toml", *self.secure, "--out", "run", "-q")
        wait_for(
            lambda: rows(self.place / "run") or not self.running(), "no round"
        )  # then it is known to the server

    def running(self) -> bool:
        """Whether the run goes on."""
        return self.commands.running["run"].poll() is None

    def wake(self, *, all_of_them: bool = False) -> None:
        """Let stopped programs go on whose time is over."""
        now = time.monotonic()
        for due, process in [sleeper for sleeper in self.asleep if all_of_them or sleeper[0] <= now]:
            self.asleep.remove((due, process))
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def strike(self) -> str:
        """Kill or stop one program that is awake: the next that was drawn and is there."""
        for name, signal_name in list(self.ahead or self._drawn()):
            if processes := set(started_with(self.place, *self.programs[name])) - {
                sleeper for _, sleeper in self.asleep
            }:
                self.ahead.remove((name, signal_name))
                self.faults[f"{signal_name} {name}"] += 1
                return self._struck(name, signal_name, processes)
        return "nobody of those drawn is awake"

    def _drawn(self) -> list[tuple[str, str]]:
        """Every program in both ways, in a new order."""
        self.ahead = [(name, signal_name) for name in self.programs for signal_name in WAYS]
        self.random.shuffle(self.ahead)
        return self.ahead

    def _struck(self, name: str, signal_name: str, processes: set[int]) -> str:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL if signal_name == "killed" else signal.SIGSTOP)
        if signal_name == "killed":
            return f"killed {name}"
        seconds = self.random.uniform(*STOPS)
        self.asleep += [(time.monotonic() + seconds, process) for process in processes]
        return f"stopped {name} for {seconds:.0f} seconds"


def judge(soak: Soak, rounds: int) -> list[str]:
    """What is wrong with the run; nothing, if all is well."""
    code, run = soak.commands.running["run"].poll(), soak.place / "run"
    if code != 0 or not (run / folder.SUMMARY).exists():
        return [f"potluck run ended with {code}: {soak.commands.said('run')[-2000:]}"]
    steps = rows(run)
    problems = []
    if [row["round"] for row in steps] != list(range(1, rounds + 1)):
        problems.append(f"the rounds are {[row['round'] for row in steps]}")
    for row in steps:
        clients_of_row = sorted([*row["participants"], *(failure["client"] for failure in row["failures"])])
        if clients_of_row != list(range(soak.nodes)):
            problems.append(f"round {row['round']} accounts for {clients_of_row}")
        if not all(failure["kind"] and failure["reason"] for failure in row["failures"]):
            problems.append(f"round {row['round']} does not say why somebody is missing")
    for path in soak.paths:
        list(AuditLog(read_node(path).audit_log()).lines())
    every = {f"{signal_name} {name}" for name in soak.programs for signal_name in WAYS}
    if sum(soak.faults.values()) >= 2 * len(every) and (missed := every - soak.faults.keys()):
        problems.append(f"never {', '.join(sorted(missed))}")
    return problems


def summary(soak: Soak, rounds: int) -> dict[str, Any]:
    """What happened, in numbers."""
    steps = rows(soak.place / "run")
    kinds = Counter(failure["kind"] for row in steps for failure in row["failures"])
    outputs = {name: soak.commands.said(name) for name in soak.commands.running}
    return {
        "rounds asked": rounds,
        "rounds": len(steps),
        "strikes": sum(soak.faults.values()),
        "faults": dict(sorted(soak.faults.items())),
        "answers": sum(len(row["participants"]) for row in steps),
        "losses on record": dict(kinds),
        "rounds without a loss": sum(not row["failures"] for row in steps),
        "starts again": {
            name: text.count("started again") for name, text in outputs.items() if "started again" in text
        },
        "submitted again": outputs["run"].count("going on from its last checkpoint"),
    }


def _losses(done: list[dict[str, Any]], client: int) -> int:
    return sum(failure["client"] == client for row in done for failure in row["failures"])


def fire(soak: Soak, minutes: float, every: float) -> float:
    """Strike for so many minutes, then wait for the run to come to its end; gives the seconds of both."""
    began = struck = time.monotonic()
    ends = began + 60 * minutes
    gives_up = ends + 60 * max(15.0, minutes)
    while soak.running() and time.monotonic() < gives_up:
        now = time.monotonic()
        soak.wake(all_of_them=now > ends)
        if now - struck >= every and now < ends:
            struck = now
            print(f"{now - began:6.0f} s  round {len(rows(soak.place / 'run'))}: {soak.strike()}", flush=True)
        time.sleep(0.5)
    soak.wake(all_of_them=True)
    return time.monotonic() - began


def main() -> None:
    """Soak, judge, and write down what happened."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="for how long programs are struck")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two strikes")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of the run; else three per minute")
    parser.add_argument("--seed", type=int, default=0, help="of the strikes")
    parser.add_argument("--record", type=Path, help="where the outcome of a soak that went well is kept")
    parser.add_argument(
        "--secure-sums", action="store_true", help="answers are masked (fedproto in fedgh's place)"
    )
    arguments = parser.parse_args()
    rounds = arguments.rounds or max(4, int(3 * arguments.minutes))
    place = Path(tempfile.mkdtemp(prefix="potluck-soak-"))
    with commands_in(place) as commands:
        soak = Soak(commands, rounds, arguments.seed, sums=arguments.secure_sums)
        seconds = fire(soak, arguments.minutes, arguments.every)
        problems = judge(soak, rounds)
        settings = {
            "minutes": arguments.minutes,
            "every": arguments.every,
            "seed": arguments.seed,
            **({"secure sums": True} if arguments.secure_sums else {}),
            "seconds": round(seconds),
        }
        made = {**provenance(), "flwr": metadata.version("flwr"), "load": round(os.getloadavg()[2], 1)}
        outcome = {**settings, **summary(soak, rounds), "made": made}
        print(json.dumps(outcome, indent=2))
    if problems:
        print(f"what everybody said is in {place}")
    else:
        shutil.rmtree(place)
    if arguments.record and not problems:
        arguments.record.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
    print(
        "\n".join(problems) if problems else "all rounds are there, and every client is in every one of them"
    )
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
