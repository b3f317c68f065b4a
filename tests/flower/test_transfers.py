"""Answers that are announced and do not come: nobody waits for them but their own clock."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from potluck.core.errors import PotluckError
from potluck.experiment import parse_experiment
from potluck.flower import start
from potluck.flower.node.registration import Assignment
from potluck.flower.outage import STALLS, Exclusions
from potluck.flower.registry import NodeRegistry
from potluck.flower.server_app import serve
from potluck.flower.transfers import (
    CHUNK,
    MAX_GAP,
    MAX_PIECES,
    SMALL,
    Head,
    NoReply,
    PieceLost,
    Transfers,
    UploadLimits,
    reply_source,
)
from potluck.runs.run import Run
from support.loopgrid import LoopGrid, dealt_nodes
from support.own_nodes import experiment, node_registrations, three_nodes
from support.piecewise_grid import PiecewiseGrid

QUICK = {"upload_grace": 0.1, "upload_rate": 1e6}


class Upload:
    """A reply of so many pieces, of which `there` have arrived."""

    def __init__(self, count: int, size: int = 1000) -> None:
        self.names, self.size, self.there = tuple(f"p{i}" for i in range(count)), size, 0
        self.lost = False

    def heads(self, numbers: Any) -> Any:
        return (Head(number, "m", self.names) for number in numbers)

    def piece(self, name: str) -> bytes | None:
        if self.lost:
            raise PieceLost(name)
        return b"x" * self.size if self.names.index(name) < self.there else None

    def message(self, head: Head, pieces: dict[str, bytes]) -> Any:
        assert tuple(pieces) == self.names
        return "complete"


def transfers(upload: Upload, clock: list[float], limit: int = 1 << 30, **limits: float) -> Transfers:
    return Transfers(upload, limit, UploadLimits(**limits), now=lambda: clock[0])


def result(replies: Transfers) -> Any:
    return dict(replies.poll(["1"])).get("1")


def test_an_upload_above_the_rate_is_waited_for_however_long_it_is() -> None:
    clock, upload = [0.0], Upload(100, size=CHUNK)
    replies = transfers(upload, clock, grace=10.0, rate=1e6)
    while upload.there < 100:
        assert result(replies) is None
        for _ in range(5):  # 5 seconds for 5 MB, as the rate asks
            clock[0] += 1.0
            assert result(replies) is None
        upload.there += 1
    for _ in range(10):
        if (reply := result(replies)) is not None:
            break
    assert reply == "complete"


def test_an_upload_that_stops_is_given_up_when_its_next_piece_is_overdue() -> None:
    clock, upload = [0.0], Upload(3)
    replies = transfers(upload, clock, grace=10.0, rate=1e6)
    assert result(replies) is None
    clock[0] += 4.0
    upload.there = 1
    assert result(replies) is None
    for _ in range(2):
        clock[0] += 3.5
        assert result(replies) is None
    clock[0] += 10.0 + (1000 + SMALL) / 1e6 - 11.0 + 0.1
    assert result(replies) == NoReply(
        "its answer was announced, and in 11 seconds 1 of 3 pieces came (engine.upload_grace, engine.upload_rate)",
        "lost",
    )
    assert not replies.uploading("1")


def test_time_in_which_the_server_was_away_does_not_count() -> None:
    clock, upload = [0.0], Upload(3)
    replies = transfers(upload, clock, grace=10.0, rate=1e9)
    assert result(replies) is None
    clock[0] += 3600.0  # stopped, or its clock
    assert result(replies) is None
    for _ in range(2):
        clock[0] += MAX_GAP - 0.1
        assert result(replies) is None or clock[0] > 3609.0
    assert not replies.uploading("1")


def test_no_limit_waits_and_a_given_up_upload_ends() -> None:
    clock, upload = [0.0], Upload(3)
    replies = transfers(upload, clock, grace=1.0, rate=0.0)
    for _ in range(1000):
        clock[0] += 4.0
        assert result(replies) is None
    upload.lost = True
    assert result(replies) == NoReply("its upload was not completed", "lost")


def test_a_reply_above_the_limit_is_not_collected() -> None:
    upload = Upload(5, size=1 << 20)
    upload.there = 5
    replies = transfers(upload, [0.0], limit=2 << 20)
    assert result(replies) == NoReply(f"The message holds more than {2 << 20} bytes.")


def test_a_tree_of_too_many_pieces_is_unreadable() -> None:
    from flwr.proto.message_pb2 import ObjectTree

    tree = ObjectTree(object_id="a", children=[ObjectTree(object_id=str(i)) for i in range(MAX_PIECES)])
    deep = ObjectTree(object_id="a")
    for i in range(90):
        deep = ObjectTree(object_id=str(i), children=[deep])
    pieces = {"1": tree, "2": deep}

    class Crafted(PiecewiseGrid):
        def _heads(self, request: Any) -> Any:
            heads = [SimpleNamespace(message_id=number, reply_to_message_id=number) for number in pieces]
            messages = [SimpleNamespace(metadata=head) for head in heads]
            return SimpleNamespace(messages_list=messages, message_object_trees=list(pieces.values()))

    grid = Crafted({}, {})
    first, second = reply_source(grid).heads(["1", "2"])
    assert first == ("1", NoReply("the answer could not be read"))
    assert isinstance(second, Head)
    assert len(second.pieces) == 91


# -- runs ---------------------------------------------------------------------------------------------------------


def run_on(grid: LoopGrid, out: Path, method: str = "fedgh", engine: Any = (), **schedule: Any) -> Run:
    values = {
        "method": {"name": method},
        "data": {"limit": 90},
        "partition": {"clients": 3, "rule": "iid"},
        "training": {"epochs": 1, "batch_size": 8},
        "schedule": {"rounds": 3, "on_failure": "continue", **schedule},
        "evaluate": {"also": []},
        "engine": {"name": "flower", **QUICK, **dict(engine)},
    }
    text = parse_experiment(values).model_dump_json(exclude_none=True)
    return serve(grid, {"experiment": text, "out": str(out)}, poll_interval=0.01)


def without_times(run: Run) -> Any:
    return [{**row, "seconds": 0} for row in run.rounds]


def train(reply: Message) -> bool:
    return reply.metadata.message_type == "train"


def test_answers_in_pieces_have_the_same_bits(tmp_path: Path) -> None:
    pieces = run_on(PiecewiseGrid(dealt_nodes(3), {}), tmp_path / "pieces")
    unbroken = run_on(LoopGrid(dealt_nodes(3), {}), tmp_path / "whole")
    assert without_times(pieces) == without_times(unbroken)


@pytest.mark.parametrize("method", ["fedgh", "fedhe"])
def test_a_withheld_answer_costs_nobody_else_theirs(tmp_path: Path, method: str) -> None:
    withheld = lambda reply, index: not train(reply) or index != 0  # noqa: E731
    more = {"concurrency": 3} if method == "fedhe" else {}
    run = run_on(PiecewiseGrid(dealt_nodes(3), {}, holds={101: withheld}), tmp_path / "run", method, **more)
    failures = [failure for row in run.rounds for failure in row["failures"]]
    assert {failure["client"] for failure in failures} == {1}
    assert "train in round 1: its answer was announced, and in" in failures[0]["reason"]
    assert {client for row in run.rounds for client in row["participants"]} == {0, 2}
    assert run.rounds[-1]["round"] == 3
    if method == "fedgh":
        assert [row["participants"] for row in run.rounds] == [[0, 2]] * 3
        assert "left out for another 600 seconds (engine.cooldown)" in failures[2]["reason"]


def test_a_node_left_out_comes_back_after_its_cooldown(tmp_path: Path) -> None:
    count = itertools.count()
    seen: set[int] = set()

    def twice(reply: Message, index: int) -> bool:
        if train(reply) and id(reply) not in seen and len(seen) < STALLS:
            seen.add(id(reply))
            held_replies.append(reply)
            next(count)
        return id(reply) not in seen

    held_replies: list[Message] = []
    engine = {"cooldown": 1e-6}  # over before the next draw, however fast the machine
    run = run_on(
        PiecewiseGrid(dealt_nodes(3), {}, holds={101: twice}), tmp_path / "run", engine=engine, rounds=4
    )
    assert [1 in row["participants"] for row in run.rounds] == [False, False, True, True]


def test_uploads_that_all_stop_are_an_outage_and_the_round_has_the_same_bits(tmp_path: Path) -> None:
    """The connection of all nodes is cut while they upload; each is asked again and answers from its journal."""
    cut: set[int] = set()
    held_replies: list[Message] = []

    def first(node: int) -> Any:
        def hold(reply: Message, index: int) -> bool:
            if train(reply) and node not in cut:
                cut.add(node)
                held_replies.append(reply)
            return not any(reply is held_reply for held_reply in held_replies)

        return hold

    grid = PiecewiseGrid(dealt_nodes(3), {}, holds={100 + i: first(100 + i) for i in range(3)})
    waited = run_on(grid, tmp_path / "run")
    plain = run_on(LoopGrid(dealt_nodes(3), {}), tmp_path / "plain")
    assert len(held_replies) == 3
    assert without_times(waited) == without_times(plain)


def test_an_upload_is_not_asked_again_while_it_arrives(tmp_path: Path) -> None:
    calls = itertools.count()
    slow = lambda reply, index: not train(reply) or index != 0 or next(calls) % 40 == 39  # noqa: E731
    grid = PiecewiseGrid(dealt_nodes(3), {}, holds={100: slow})
    run = run_on(grid, tmp_path / "run", engine={"lost_after": 0.05, "upload_grace": 60.0})
    assert [row["failures"] for row in run.rounds] == [[]] * 3
    sent = [message.metadata for message in grid.pushed if message.metadata.message_type == "train"]
    assert sum(metadata.dst_node_id == 100 for metadata in sent) == 3


def own_nodes(tmp_path: Path) -> dict[int, Any]:
    return {i: {"node-file": str(path)} for i, path in enumerate(three_nodes(tmp_path))}


def run_own(grid: LoopGrid, out: Path, **engine: Any) -> Run:
    values = {
        "method": {"name": "fedgh"},
        "training": {"epochs": 1, "batch_size": 8},
        "schedule": {"rounds": 1, "on_failure": "continue"},
        "engine": {"name": "flower", "nodes": 3, "classes": 3, "wait": 1.0, **QUICK, **engine},
    }
    text = parse_experiment(values).model_dump_json(exclude_none=True)
    return serve(grid, {"experiment": text, "out": str(out)}, poll_interval=0.01)


@pytest.mark.parametrize("rate", [1e6, 0.0])
def test_a_withheld_registration_does_not_keep_the_others_from_starting(tmp_path: Path, rate: float) -> None:
    grid = PiecewiseGrid(own_nodes(tmp_path), {}, holds={1: lambda reply, index: False})
    run = run_own(grid, tmp_path / "run", min_nodes=2, upload_rate=rate)
    assert run.rounds[0]["participants"] == [0, 1]
    assert '"node-0"' in (tmp_path / "run" / "nodes.json").read_text()
    assert '"node-1"' not in (tmp_path / "run" / "nodes.json").read_text()


def test_fewer_than_min_nodes_are_counted_and_end_the_start(tmp_path: Path) -> None:
    grid = PiecewiseGrid(own_nodes(tmp_path), {}, holds={1: lambda reply, index: False})
    with pytest.raises(PotluckError, match="2 of 3 nodes answered within engine.wait = 1 seconds"):
        run_own(grid, tmp_path / "run", min_nodes=3)
    with pytest.raises(PotluckError, match="engine.min_nodes = 4 is above engine.nodes = 3; lower it"):
        run_own(grid, tmp_path / "other", min_nodes=4)


def test_a_node_that_never_answers_does_not_keep_the_others_from_starting(tmp_path: Path) -> None:
    nodes = own_nodes(tmp_path)
    nodes.pop(1)  # it never connects
    run = run_own(LoopGrid(nodes, {}), tmp_path / "run", min_nodes=2)
    assert run.rounds[0]["participants"] == [0, 1]


def test_a_run_begins_with_min_nodes_and_does_not_wait_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "START_GRACE", 0.3)
    grid = PiecewiseGrid(own_nodes(tmp_path), {}, holds={1: lambda reply, index: False})
    began = time.monotonic()
    run = run_own(grid, tmp_path / "run", min_nodes=2, wait=600.0, upload_grace=600.0)
    assert run.rounds[0]["participants"] == [0, 1]
    assert time.monotonic() - began < 120


def test_a_resumed_run_goes_on_with_min_nodes_and_does_not_wait_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "START_GRACE", 0.3)
    nodes = own_nodes(tmp_path)
    registrations = node_registrations(experiment(), [Path(node["node-file"]) for node in nodes.values()])
    nodes.pop(1)
    assignment = Assignment(experiment().model_dump_json(exclude_none=True), "", str(tmp_path / "nodes"))
    registry = NodeRegistry(LoopGrid(nodes, {}), assignment, 1 << 20, poll_interval=0.01)
    began = time.monotonic()
    start.wait_for_returning_nodes(registry, registrations, 600.0, 1, enough=2)
    assert registry.missing() == ["node-1"]
    assert 0.3 < time.monotonic() - began < 120


def test_each_exclusion_is_twice_as_long_and_an_answer_clears_it() -> None:
    exclusions = Exclusions(cooldown=10.0)
    assert not exclusions.record(7, 0.0)
    assert exclusions.record(7, 0.0)
    assert exclusions.reason(7, 9.0).startswith(
        "left out for another 1 seconds (engine.cooldown), for 2 of its"
    )
    assert exclusions.reason(7, 10.0) == ""
    assert exclusions.record(7, 20.0)
    assert exclusions.reason(7, 39.0)
    exclusions.clear(7)
    assert not exclusions.reason(7, 39.0)
    assert not exclusions.record(7, 39.0)
    never = Exclusions(cooldown=0.0)
    assert not any(never.record(7, 0.0) for _ in range(5))


def test_flower_still_has_what_the_transfers_use() -> None:
    from flwr.superlink.grid.http_grid import HttpGrid

    grid = HttpGrid(token="t", insecure=True)
    assert type(reply_source(grid)).__name__ == "ServerReplies"
    for name in ("PullMessages", "PullObject", "ConfirmMessageReceived"):
        assert callable(getattr(grid._runtime_client, name))
    grid.close()
