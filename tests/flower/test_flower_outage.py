"""All nodes unreachable for a while: the round waits, and the run has the same bits."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import potluck
from potluck.experiment import parse_experiment
from potluck.flower.outage import GRACE, OutageWait
from potluck.flower.server_app import serve
from potluck.loop.loop import TooFewClients
from potluck.runs.folder import WAITING
from potluck.runs.run import Run
from support.loopgrid import LoopGrid, dealt_nodes


class Outage(LoopGrid):
    """After the first round no node is reachable, until nodes were asked for `LOOKS` times."""

    LOOKS = 5
    looks = 0
    said = ""
    out = Path()
    back: tuple[int, ...] = (100, 101, 102)

    def get_nodes(self) -> Any:
        if not self.nodes:
            self.looks += 1
            if (self.out / WAITING).exists():
                self.said = (self.out / WAITING).read_text()
            if self.looks > self.LOOKS:
                self.nodes = {node: config for node, config in dealt_nodes(3).items() if node in self.back}
        return super().get_nodes()

    def push_messages(self, messages: Any) -> list[str]:
        if self.looks == 0 and sum(message.metadata.message_type == "train" for message in self.pushed) == 3:
            self.nodes = {}
        return super().push_messages(messages)


def run_on(grid: LoopGrid, out: Path, **schedule: Any) -> Run:
    values = {
        "method": {"name": "fedgh"},
        "data": {"limit": 90},
        "partition": {"clients": 3, "rule": "iid"},
        "training": {"epochs": 1, "batch_size": 8},
        "schedule": {"rounds": 3, "on_failure": "continue", **schedule},
        "engine": {"name": "flower"},
    }
    text = parse_experiment(values).model_dump_json(exclude_none=True)
    return serve(grid, {"experiment": text, "out": str(out)}, poll_interval=0.01)


@pytest.mark.parametrize("min_clients", [0, 1, 3])
def test_a_round_without_reachable_nodes_waits_and_has_the_same_bits(
    tmp_path: Path, min_clients: int
) -> None:
    grid = Outage(dealt_nodes(3), {})
    grid.out = tmp_path / "run"
    waited = run_on(grid, tmp_path / "run", min_clients=min_clients)
    plain = run_on(LoopGrid(dealt_nodes(3), {}), tmp_path / "plain", min_clients=min_clients)

    assert grid.looks > grid.LOOKS
    assert "Round 2 waits for 'client-0', 'client-1', 'client-2', missing since 20" in grid.said
    assert not (tmp_path / "run" / WAITING).exists()
    assert [{**row, "seconds": 0} for row in waited.rounds] == [{**row, "seconds": 0} for row in plain.rounds]


def test_without_patience_a_round_without_nodes_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(TooFewClients):
        run_on(Outage(dealt_nodes(3), {}), tmp_path / "run", patience=0)


class TwoOutages(LoopGrid):
    """No node is reachable for `LOOKS` looks after the first round, and again `GAP` seconds later."""

    LOOKS, PATIENCE = 3, 1.5
    out = Path()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.said: list[str] = []
        self.after: list[bool] = []
        self.due, self.looks = [3, 9], 0

    def get_nodes(self) -> Any:
        if not self.nodes:
            self.looks += 1
            if self.looks == self.LOOKS:
                self.said.append((self.out / WAITING).read_text())
                self.nodes = dealt_nodes(3)
        return super().get_nodes()

    def push_messages(self, messages: Any) -> list[str]:
        trained = sum(message.metadata.message_type == "train" for message in self.pushed)
        if self.due and trained >= self.due[0]:
            self.after.append((self.out / WAITING).exists())
            if len(self.due) == 1:
                time.sleep(self.PATIENCE)
            self.due, self.nodes, self.looks = self.due[1:], {}, 0
        return super().push_messages(messages)


def test_a_second_outage_is_announced_and_has_its_own_patience(tmp_path: Path) -> None:
    grid = TwoOutages(dealt_nodes(3), {})
    grid.out = tmp_path / "run"
    waited = run_on(grid, tmp_path / "run", patience=grid.PATIENCE)
    plain = run_on(LoopGrid(dealt_nodes(3), {}), tmp_path / "plain")

    assert [text.partition(", missing")[0] for text in grid.said] == [
        "Round 2 waits for 'client-0', 'client-1', 'client-2'",
        "Round 3 waits for 'client-0', 'client-1', 'client-2'",
    ]
    assert grid.after == [False, False]  # when an outage began, no sentence of an earlier one was left
    assert [{**row, "seconds": 0} for row in waited.rounds] == [{**row, "seconds": 0} for row in plain.rounds]


def test_patience_counts_from_the_last_answer_where_nodes_come_back_and_give_none(tmp_path: Path) -> None:
    wait = OutageWait(patience=100.0, needed=1, path=tmp_path / WAITING)
    assert wait.goes_on(0, 10.0, ["a"], 4)
    wait.pause()  # the job was sent again
    assert not (tmp_path / WAITING).exists()
    assert wait.goes_on(0, 100.0, ["a"], 4)  # and lost again
    assert (tmp_path / WAITING).exists()
    assert wait.expired(110.0)
    assert not wait.goes_on(0, 110.0, ["a"], 4)
    assert wait.goes_on(0, 120.0, ["a"], 5)


def test_an_outage_ends_with_enough_nodes_after_a_grace_or_with_patience(tmp_path: Path) -> None:
    wait = OutageWait(patience=100.0, needed=1, path=tmp_path / WAITING)
    assert not wait.goes_on(1, 0.0, ["b"], 4)  # one node lost of several: the round goes on without it
    assert wait.goes_on(0, 10.0, ["a", "b"], 4)
    assert (tmp_path / WAITING).read_text().startswith("Round 4 waits for 'a', 'b', missing since ")
    assert wait.goes_on(0, 109.0, ["a", "b"], 4)
    assert wait.goes_on(1, 109.5, ["b"], 4)
    assert not wait.goes_on(1, 109.5 + GRACE, ["b"], 4)
    assert not (tmp_path / WAITING).exists()
    assert wait.goes_on(0, 200.0, ["a"], 5)
    assert not wait.goes_on(0, 300.0, ["a"], 5)


def test_no_decision_depends_on_the_wall_clock() -> None:
    """A clock that jumps by an hour moves no deadline: only dates in logs and certificates are read from it."""
    package = Path(potluck.__file__).parent
    dated = {
        "flower/node/audit.py",
        "flower/deploy/keys.py",
        "flower/deploy/clock.py",
        "flower/outage.py",
        "runs/writer.py",
    }
    uses = {
        path.relative_to(package).as_posix()
        for part in ("flower", "loop", "worker", "engines", "runs")
        for path in (package / part).rglob("*.py")
        if re.search(
            r"\btime\.time\(|\bdatetime\.now\(|\bdatetime\.datetime\.now\(", path.read_text(encoding="utf-8")
        )
    }
    assert uses <= dated
