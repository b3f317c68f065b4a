"""A federation under fire: `make soak`. Programs are killed and stopped at random while a run goes on.

A server and three nodes with TLS, node keys and names, all on the loopback interface. Every half minute one of their
programs is killed, or stopped for a while. In the end the run must have all its rounds, and every client must be in every
round: among the participants, or with the reason why not.

    python tests/soak.py --minutes 30 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from own_nodes import three_nodes
from potluck.flower.deploy.keys import make_node_key
from potluck.flower.deploy.processes import free_ports
from potluck.flower.node.audit import AuditLog
from potluck.flower.node.file import read_node
from potluck.runs import folder
from real_processes import Commands, commands_in, rows, started_with, wait_for

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
nodes = 3
classes = 3
wait = 600
lost_after = 120
"""
PROGRAMS = {
    "the server": ["flower-superlink"],
    "the runner": ["flower-superexec"],
    "the server's app": ["flwr-serverapp"],
    **{f"node {i}": ["deploy.supernode", f"/n{i}/"] for i in range(3)},
    **{f"the worker of node {i}": ["deploy.own_app", f"/n{i}/"] for i in range(3)},
}
STOPS = (10.0, 75.0)
"""Seconds for which a program is stopped: below and above what Flower takes for gone."""


class Soak:
    """The federation, the faults so far, and what is stopped at present."""

    def __init__(self, commands: Commands, rounds: int, seed: int) -> None:
        self.commands, self.place = commands, commands.place
        self.random, self.faults = random.Random(seed), Counter[str]()
        self.asleep: list[tuple[float, int]] = []
        (port,) = free_ports(1)
        self.address, self.paths = f"127.0.0.1:{port}", three_nodes(self.place)
        (self.place / "experiment.toml").write_text(EXPERIMENT.format(rounds=rounds))
        self.secure = ["--server", self.address, "--ca", "potluck-server/ca.crt"]
        commands.run("keys", "server", "keys", "--host", "127.0.0.1")
        commands.start("server", "server", "start", "--port", str(port))
        commands.up("server", "runner started")
        keys = [make_node_key(path.with_suffix(".key"), f"node-{i}") for i, path in enumerate(self.paths)]
        commands.run("register", "server", "keys", *map(str, keys), "--server", self.address)
        for index, path in enumerate(self.paths):
            commands.start(f"node-{index}", "node", "start", str(path), *self.secure)
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
        for due, process in [one for one in self.asleep if all_of_them or one[0] <= now]:
            self.asleep.remove((due, process))
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def strike(self) -> str:
        """Kill or stop one program that is awake."""
        asleep = {process for _, process in self.asleep}
        living = {
            name: found
            for name, words in PROGRAMS.items()
            if (found := set(started_with(self.place, *words)) - asleep)
        }
        if not living:
            return "nobody is awake"
        name = self.random.choice(sorted(living))
        if self.random.random() < 0.5:
            self._signal(living[name], signal.SIGKILL)
            what = f"killed {name}"
        else:
            seconds = self.random.uniform(*STOPS)
            self._signal(living[name], signal.SIGSTOP)
            self.asleep += [(time.monotonic() + seconds, process) for process in living[name]]
            what = f"stopped {name} for {seconds:.0f} seconds"
        self.faults[what.split(" for ")[0]] += 1
        return what

    def _signal(self, processes: set[int], number: int) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)


def judge(soak: Soak, rounds: int) -> list[str]:
    """What is wrong with the run; nothing, if all is well."""
    code, run = soak.commands.running["run"].poll(), soak.place / "run"
    if code != 0 or not (run / folder.SUMMARY).exists():
        return [f"potluck run ended with {code}: {soak.commands.said('run')[-2000:]}"]
    done = rows(run)
    wrong = []
    if [row["round"] for row in done] != list(range(1, rounds + 1)):
        wrong.append(f"the rounds are {[row['round'] for row in done]}")
    for row in done:
        seen = sorted([*row["participants"], *(failure["client"] for failure in row["failures"])])
        if seen != [0, 1, 2]:
            wrong.append(f"round {row['round']} accounts for {seen}")
    for path in soak.paths:
        list(AuditLog(read_node(path).audit_log()).lines())
    return wrong


def summary(soak: Soak, rounds: int) -> dict[str, Any]:
    """What happened, in numbers."""
    done = rows(soak.place / "run")
    kinds = Counter(failure["kind"] for row in done for failure in row["failures"])
    said = {name: soak.commands.said(name) for name in soak.commands.running}
    return {
        "rounds": f"{len(done)} of {rounds}",
        "faults": dict(sorted(soak.faults.items())),
        "answers": sum(len(row["participants"]) for row in done),
        "losses on record": dict(kinds),
        "starts again": {
            name: text.count("started again") for name, text in said.items() if "started again" in text
        },
        "submitted again": said["run"].count("going on from its last checkpoint"),
    }


def main() -> None:
    """Strike for so many minutes, then let the run come to its end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="for how long programs are struck")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two strikes")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of the run; else three per minute")
    parser.add_argument("--seed", type=int, default=0, help="of the strikes")
    given = parser.parse_args()
    rounds = given.rounds or max(4, int(3 * given.minutes))
    with tempfile.TemporaryDirectory(prefix="potluck-soak-") as place, commands_in(Path(place)) as commands:
        soak, began = Soak(commands, rounds, given.seed), time.monotonic()
        struck, ends = began, began + 60 * given.minutes
        gives_up = ends + 60 * max(15.0, given.minutes)
        while soak.running() and time.monotonic() < gives_up:
            now = time.monotonic()
            soak.wake(all_of_them=now > ends)
            if now - struck > given.every and now < ends:
                struck = now
                print(
                    f"{now - began:6.0f} s  round {len(rows(soak.place / 'run'))}: {soak.strike()}",
                    flush=True,
                )
            time.sleep(0.5)
        soak.wake(all_of_them=True)
        wrong = judge(soak, rounds)
        print(json.dumps(summary(soak, rounds), indent=2))
        if wrong:
            for name in commands.running:
                print(f"--- {name}\n{commands.said(name)[-3000:]}")
    print("\n".join(wrong) if wrong else "all rounds are there, and every client is in every one of them")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
