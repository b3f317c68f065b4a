"""Messages lost in transit, and node names bound to keys."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.run import RunNotRunningException

from potluck.core.errors import PotluckError
from potluck.experiment import parse_experiment
from potluck.flower import registry
from potluck.flower.client_app import app
from potluck.flower.grid import CONNECTION_LOST, ConnectionLost, RetryingGrid
from potluck.flower.outage import ResendTimes
from potluck.flower.server_app import main, serve
from potluck.runs.folder import lock_folder, read_waiting
from potluck.runs.run import Run
from support.loopgrid import LoopGrid, dealt_nodes


class Swallowed:
    """The node dies with the first message in its hands, and is back before anybody misses it."""

    def __init__(self, partition: int, times: int = 1) -> None:
        self.partition, self.times = partition, times
        self.lost: set[str] = set()

    def __call__(self, message: Message) -> Message | None:
        number = message.metadata.message_id
        if len(self.lost) < self.times:
            self.lost.add(number)
        if number in self.lost:
            return None
        return app(message, Context(1, 1, {"partition-id": self.partition}, RecordDict(), {}))


def run_with(grid: LoopGrid | RetryingGrid, out: Path, method: str = "fedgh", **schedule: Any) -> Run:
    values = {
        "method": {"name": method},
        "data": {"limit": 90},
        "partition": {"clients": 3, "rule": "iid"},
        "training": {"epochs": 1, "batch_size": 8},
        "schedule": {"rounds": 2, **schedule},
        "engine": {"name": "flower", "lost_after": 0.2},
    }
    text = parse_experiment(values).model_dump_json(exclude_none=True)
    return serve(grid, {"experiment": text, "out": str(out)}, poll_interval=0.01)


def trained(grid: LoopGrid) -> int:
    return sum(message.metadata.message_type == "train" for message in grid.pushed)


def test_a_job_whose_message_got_lost_is_asked_again(tmp_path: Path) -> None:
    grid = LoopGrid(dealt_nodes(3), {}, faults={101: [Swallowed(1)]})
    result = run_with(grid, tmp_path / "run")
    plain = run_with(LoopGrid(dealt_nodes(3), {}), tmp_path / "plain")

    assert trained(grid) >= 7  # six jobs, one of them twice
    assert [row["participants"] for row in result.rounds] == [[0, 1, 2]] * 2
    assert [{**row, "seconds": 0} for row in result.rounds] == [{**row, "seconds": 0} for row in plain.rounds]


def test_an_asynchronous_run_does_not_stand_still_for_a_lost_message(tmp_path: Path) -> None:
    grid = LoopGrid(dealt_nodes(3), {}, faults={100: [None, Swallowed(0)]})
    result = run_with(grid, tmp_path / "run", "fedhe", rounds=3, concurrency=3)

    assert sum(len(row["participants"]) for row in result.rounds) == 9
    assert [row["failures"] for row in result.rounds] == [[]] * 9


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_unanswered_job_is_recorded_as_lost(tmp_path: Path, mode: str) -> None:
    grid = LoopGrid(dealt_nodes(3), {}, faults={102: [Swallowed(2, times=3)]})
    result = run_with(
        grid,
        tmp_path / "run",
        mode=mode,
        on_failure="continue",
        **({"concurrency": 3} if mode == "async" else {}),
    )

    (failure,) = [failure for row in result.rounds for failure in row["failures"]]
    assert (failure["client"], failure["kind"]) == (2, "lost")
    assert re.fullmatch(
        r"train in round 1: asked 3 times, no answer in (1\.[4-9]|[2-9]\.\d) seconds", failure["reason"]
    )
    assert result.rounds[-1]["round"] == 2
    assert sum(len(row["participants"]) for row in result.rounds) == 5


@dataclass
class Silent:
    """A node that stays connected and answers nothing from some message on."""

    out: Path
    said: list[str] = field(default_factory=list)

    def __call__(self, message: Message) -> None:
        sentence = read_waiting(self.out)
        if sentence and sentence not in self.said:
            self.said.append(sentence)


def test_a_silent_node_is_named_and_left_out(tmp_path: Path) -> None:
    silent = Silent(tmp_path / "run")
    grid = LoopGrid(dealt_nodes(3), {}, faults={102: [silent]})
    result = run_with(grid, tmp_path / "run", on_failure="continue", rounds=4)

    reasons = [failure["reason"] for row in result.rounds for failure in row["failures"]]
    assert [row["participants"] for row in result.rounds] == [[0, 1]] * 4
    assert reasons[0].startswith("train in round 1: asked 3 times, no answer in ")
    assert reasons[1].startswith("train in round 2: asked once, no answer in ")
    assert all("left out for another" in reason for reason in reasons[2:])
    assert silent.said[0].startswith("Round 1 waits for 'client-2', without an answer since 20")
    assert read_waiting(tmp_path / "run") == ""


def test_a_job_of_a_quick_node_is_sent_again_earlier() -> None:
    times = ResendTimes(lost_after=900.0)
    assert times.seconds(0) == 900.0  # nothing is known of it
    times.record(0, 2.0)
    assert times.seconds(0) == 60.0
    times.record(0, 20.0)
    times.record(0, 3.0)
    assert times.seconds(0) == 200.0  # ten times the longest
    times.record(0, 500.0)
    assert times.seconds(0) == 900.0
    assert times.seconds(1) == 900.0
    assert ResendTimes(lost_after=math.inf).seconds(0) == math.inf


def test_first_job_of_a_node_is_sent_again_after_a_hundred_times_the_longest_answer_of_all() -> None:
    times = ResendTimes(lost_after=900.0)
    times.record(0, 0.3)
    assert times.seconds(1) == 60.0
    times.record(2, 5.0)
    assert times.seconds(1) == 500.0
    times.record(2, 30.0)
    assert times.seconds(1) == 900.0


def test_a_question_for_a_registration_that_got_lost_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "REASK_SECONDS", 0.2)

    class Deaf(LoopGrid):
        def _reply(self, node: int, message: Message) -> Message | None:
            return None if message is self.pushed[0] else super()._reply(node, message)

    grid = Deaf(dealt_nodes(3), {})
    assert len(run_with(grid, tmp_path / "run").rounds) == 2
    assert sum(message.metadata.message_type == "query" for message in grid.pushed) == 4


def test_a_key_takes_part_under_the_name_that_it_was_registered_with_and_no_other(tmp_path: Path) -> None:
    good = LoopGrid(dealt_nodes(3), {}, names={100: "client-0", 101: "client-1"})
    assert len(run_with(good, tmp_path / "good").rounds) == 2
    bad = LoopGrid(dealt_nodes(3), {}, names={100: "client-0", 101: "client-7"})
    with pytest.raises(PotluckError, match="whose key is registered as 'client-7' calls itself 'client-1'"):
        run_with(bad, tmp_path / "bad")


def test_name_of_a_missing_node_stays_reserved(tmp_path: Path) -> None:
    """Node 101 goes after the first round; a registered stranger then says that it is client-1."""

    class Taken(LoopGrid):
        def push_messages(self, messages: Any) -> list[str]:
            if trained(self) == 3 and 101 in self.nodes:
                self.nodes[901] = self.nodes.pop(101)
                self.names[901] = "stranger"
            return super().push_messages(messages)

    grid = Taken(dealt_nodes(3), {}, names={100 + i: f"client-{i}" for i in range(3)})
    result = run_with(grid, tmp_path / "run", rounds=4, on_failure="continue")
    assert [1 in row["participants"] for row in result.rounds] == [True, False, False, False]


class Flaky(LoopGrid):
    """Every third call meets a server that stands still."""

    calls = 0

    def _away(self) -> None:
        self.calls += 1
        if self.calls % 3 == 0:
            raise httpx.ConnectTimeout("_ssl.c:989: The handshake operation timed out")

    def get_nodes(self) -> Any:
        self._away()
        return super().get_nodes()

    def push_messages(self, messages: Any) -> list[str]:
        numbers = super().push_messages(messages)
        self._away()  # they went, and nobody heard that they did
        return numbers

    def pull_messages(self, message_ids: Any) -> list[Message]:
        self._away()
        return super().pull_messages(message_ids)


def test_a_server_that_is_away_for_a_moment_costs_nothing(tmp_path: Path) -> None:
    flaky = Flaky(dealt_nodes(3), {})
    result = run_with(RetryingGrid(flaky, retry_interval=0.0), tmp_path / "run")
    plain = run_with(LoopGrid(dealt_nodes(3), {}), tmp_path / "plain")
    assert flaky.calls > 10
    assert [{**row, "seconds": 0} for row in result.rounds] == [{**row, "seconds": 0} for row in plain.rounds]


def test_a_server_that_stays_away_is_no_fault_of_the_run(tmp_path: Path) -> None:
    clock = iter(range(100))

    class Gone(LoopGrid):
        def get_nodes(self) -> Any:
            raise httpx.ConnectError("refused")

    grid = RetryingGrid(Gone({}, {}), max_outage=10, sleep=lambda _: None, now=lambda: float(next(clock)))
    with pytest.raises(ConnectionLost, match="was lost: ConnectError for 10 seconds"):
        grid.get_nodes()


@pytest.mark.parametrize("error", [RunNotRunningException(), httpx.HTTPError("501")])
def test_a_run_that_the_server_takes_for_over_leaves_no_word_of_its_own(
    tmp_path: Path, error: Exception
) -> None:
    class Over(LoopGrid):
        def get_nodes(self) -> Any:
            raise error

    config = {"experiment": "fedgh", "out": str(tmp_path / "run"), "trouble": str(tmp_path / "trouble")}
    with pytest.raises(ConnectionLost, match=CONNECTION_LOST):
        main(Over({}, {}), Context(1, 1, {}, RecordDict(), config))
    assert not (tmp_path / "trouble").exists()


def test_a_folder_that_the_process_before_still_has_is_no_fault_of_the_run(tmp_path: Path) -> None:
    values = {"data": {"limit": 90}, "partition": {"clients": 3}, "engine": {"name": "flower"}}
    text = parse_experiment(values).model_dump_json(exclude_none=True)
    config = {"experiment": text, "out": str(tmp_path / "run"), "trouble": str(tmp_path / "trouble")}
    with (
        lock_folder(tmp_path / "run"),
        pytest.raises(ConnectionLost, match=f"{CONNECTION_LOST}: the process before"),
    ):
        main(LoopGrid(dealt_nodes(3), {}), Context(1, 1, {}, RecordDict(), config))
    assert not (tmp_path / "trouble").exists()


def test_node_that_withheld_an_answer_and_then_was_gone_is_not_left_out(tmp_path: Path) -> None:
    """A computer that goes to sleep in the middle of an upload: one answer does not come, then nobody is there."""

    def gone(message: Message) -> Message:
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)

    messages: list[str] = []

    def falls_asleep(message: Message) -> Message | None:
        if message.metadata.message_id not in messages:
            messages.append(message.metadata.message_id)
        return None if message.metadata.message_id in messages[:3] else gone(message)

    grid = LoopGrid(dealt_nodes(3), {}, faults={102: [falls_asleep, gone, None, None]})
    run = run_with(grid, tmp_path / "run", on_failure="continue", rounds=5)

    assert [2 in row["participants"] for row in run.rounds] == [False, False, False, True, True]
