"""Malformed answers are rejected, and the run continues for all other clients."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from test_flower_loop import on_flower, small, spoiled

from potluck.core.errors import PotluckError
from potluck.core.payload import PayloadError
from potluck.flower import record
from potluck.flower.content import KIND, RECORD
from potluck.flower.node.registration import Registration
from potluck.wire import Message as WireMessage
from support.loopgrid import LoopGrid, dealt_nodes
from support.own_nodes import experiment, node_registrations, three_nodes

NESTED = b"[" * 9000


def with_bytes(data: bytes) -> Callable[[Message], Message]:
    """A message that looks like ours and holds these bytes."""
    array = Array(dtype="uint8", shape=(len(data),), stype=KIND, data=data)
    content = RecordDict({RECORD: ArrayRecord({KIND: array})})
    return lambda message: Message(content, reply_to=message)


def with_fact(*path: str, value: Any) -> Any:
    """An honest answer with one fact of its envelope replaced."""

    def change(letter: WireMessage) -> WireMessage:
        facts: Any = copy.deepcopy(letter.facts)
        holder = facts
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value
        return replace(letter, facts=facts)

    return spoiled(change)


def score(**facts: Any) -> Any:
    return with_fact("scores", "own", value={"correct": 1, "samples": 5, "loss_sum": 1.0, "macro_f1": 0.1, "calibration_error": 0.1} | facts)  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        with_bytes(len(NESTED).to_bytes(8, "little") + NESTED),
        with_bytes(b""),
        with_bytes(b"\xff" * 100),
        with_fact("answer", "trained_samples", value=10**4000),
        with_fact("answer", "trained_samples", value=-1),
        with_fact("answer", "train_loss", value="low"),
        with_fact("answer", "bytes_up", value=None),
        with_fact("answer", "notes", value={str(i): 1 for i in range(1000)}),
        with_fact("scores", value={"nobody's": {}}),
        with_fact("scores", "alone", value={"correct": 1, "samples": 2, "loss_sum": 0.0, "macro_f1": 0.0, "calibration_error": 0.0}),
        score(samples=0),
        score(correct=None),
        score(correct=10**9),
        score(samples=-5),
        score(correct=float("nan")),
        spoiled(lambda letter: replace(letter, payload=None)),
        lambda message: Message(RecordDict(), reply_to=message),
    ],
)  # fmt: skip
@pytest.mark.parametrize("on_failure", ["stop", "continue"])
def test_an_answer_that_cannot_be_is_on_record_and_the_run_goes_on(
    tmp_path: Path, fault: Any, on_failure: str
) -> None:
    values = small(schedule={"rounds": 2, "on_failure": on_failure}, evaluate={"also": []})

    run = on_flower(values, tmp_path / "run", LoopGrid(dealt_nodes(3), {}, faults={101: [fault]}))

    assert [row["participants"] for row in run.rounds] == [[0, 2], [0, 1, 2]]
    (failure,) = run.rounds[0]["failures"]
    assert (failure["client"], failure["kind"]) == (1, "invalid")
    assert 0 < len(failure["reason"]) < 2100


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308])
def test_a_loss_that_is_no_number_is_null_in_the_record(tmp_path: Path, value: float) -> None:
    fault = with_fact("answer", "train_loss", value=value)

    run = on_flower(small(evaluate={"also": []}), tmp_path / "run", LoopGrid(dealt_nodes(3), {}, faults={101: [fault]}))  # fmt: skip

    assert run.rounds[0]["participants"] == [0, 1, 2]
    json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0], parse_constant=pytest.fail)


def test_sizes_of_messages_are_counted_here_and_not_believed(tmp_path: Path) -> None:
    values = small(evaluate={"also": []})
    honest = on_flower(values, tmp_path / "honest")
    boast = with_fact("answer", "bytes_up", value=2**53)

    run = on_flower(values, tmp_path / "run", LoopGrid(dealt_nodes(3), {}, faults={101: [boast]}))

    assert [row["bytes_up"] for row in run.rounds] == [row["bytes_up"] for row in honest.rounds]
    assert run.rounds[0]["virtual_seconds"] == honest.rounds[0]["virtual_seconds"]


@pytest.mark.parametrize(
    "fault",
    [
        lambda message: Message(record.to_record(WireMessage({"refusal": "no " * 10**7})), reply_to=message),
        lambda message: Message(Error(1, "\x1b[2J" + "no " * 10**7), reply_to=message),
    ],
)
def test_a_refusal_of_thirty_megabytes_is_cut(tmp_path: Path, fault: Any) -> None:
    values = small(schedule={"on_failure": "continue"}, evaluate={"also": []})

    run = on_flower(values, tmp_path / "run", LoopGrid(dealt_nodes(3), {}, faults={101: [fault]}))

    assert (tmp_path / "run" / "rounds.jsonl").stat().st_size < 10_000
    assert "\x1b" not in run.rounds[0]["failures"][0]["reason"]


class Unreadable(LoopGrid):
    """Flower's own reader fails at the first answer of node 101, as it does at a crafted object."""

    failed = False

    def pull_messages(self, message_ids: Any) -> list[Message]:
        replies = super().pull_messages(message_ids)
        requested = [
            m for m in self.pushed if m.metadata.message_type == "train" and m.metadata.dst_node_id == 101
        ]
        crafted = {message.metadata.message_id for message in requested}
        if not self.failed and any(reply.metadata.reply_to_message_id in crafted for reply in replies):
            self.failed = True
            raise RecursionError
        return replies


def test_an_answer_at_which_flower_itself_fails_is_that_nodes_alone(tmp_path: Path) -> None:
    values = small(evaluate={"also": []})

    run = on_flower(values, tmp_path / "run", Unreadable(dealt_nodes(3), {}))

    assert [row["participants"] for row in run.rounds] == [[0, 2], [0, 1, 2]]
    assert run.rounds[0]["failures"][0]["reason"] == "the answer could not be read"


# -- registrations ------------------------------------------------------------------------------------------------

BAD = [
    ("name", ""),
    ("name", 3),
    ("name", "x" * 201),
    ("name", "a\x1b[2J"),
    ("samples", 10**12),
    ("samples", -1),
    ("samples", 1.5),
    ("samples", None),
    ("feature_dim", 10**12),
    ("input_shape", "4"),
    ("input_shape", [10**7, 10**7]),
    ("tensors", {"w": ["float32", 10**12]}),
    ("tensors", {"w": ["float32", 10**6, 10**6, 0, 10**9, 10**9]}),
    ("tensors", {"w": ["load", 3]}),
    ("tensors", [1]),
    ("parameters", ["nobody's"]),
    ("parameters", [["a"]]),
    ("head", {"weight": [10**12]}),
    ("stage_shapes", [[-1]]),
    ("width_rate", float("nan")),
    ("validation", True),
    ("surplus", 1),
]


def told(tmp_path: Path) -> dict[str, Any]:
    (registration,) = node_registrations(experiment(), three_nodes(tmp_path)[:1])
    return dict(json.loads(json.dumps(registration.message().facts["registration"])))


def test_valid_registration_is_read_back_unchanged(tmp_path: Path) -> None:
    facts = told(tmp_path)
    assert vars(Registration.read(WireMessage({"registration": facts}), 1 << 20)) == facts


@pytest.mark.parametrize(("field", "value"), BAD)
def test_what_a_node_cannot_honestly_claim_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(PayloadError):
        Registration.read(WireMessage({"registration": {**told(tmp_path), field: value}}), 1 << 30)


def test_a_registration_of_a_hundred_megabytes_is_refused_unread(tmp_path: Path) -> None:
    """Nothing in it is wrong but that it is there."""

    def large(message: Message) -> Message:
        facts = {"registration": {"name": "x" * (100 << 20)}}
        return Message(record.to_record(WireMessage(facts)), reply_to=message)

    grid = Crowd(dealt_nodes(2), {2: large})
    with pytest.raises(PotluckError, match="The message holds 104.* bytes, the limit is 16777216"):
        on_flower(small(engine={"wait": 0.05}), tmp_path / "run", grid)


class Crowd(LoopGrid):
    """A grid with strangers: nodes that answer any question in their own way."""

    def __init__(self, nodes: dict[int, Any], strangers: dict[int, Any], since: int = 0) -> None:
        super().__init__(nodes, {})
        self.strangers, self.since = strangers, since

    def get_node_ids(self) -> list[int]:
        trained = sum(message.metadata.message_type == "train" for message in self.pushed)
        return [*(self.strangers if trained >= self.since else ()), *self.nodes]

    def _reply(self, node: int, message: Message) -> Message | None:
        return self.strangers[node](message) if node in self.strangers else super()._reply(node, message)


def registered(facts: Any) -> Callable[[Message], Message]:
    return lambda message: Message(record.to_record(WireMessage(facts)), reply_to=message)


STRANGERS = {
    1: with_bytes(NESTED),
    2: registered({"registration": "me"}),
    3: registered({}),
    4: registered({"registration": {"name": "client-0", "samples": 10**12}}),
    5: lambda message: Message(RecordDict(), reply_to=message),
}


def test_nonsense_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    run = on_flower(small(evaluate={"also": []}), tmp_path / "run", Crowd(dealt_nodes(3), STRANGERS))

    assert [row["participants"] for row in run.rounds] == [[0, 1, 2], [0, 1, 2]]


def test_nonsense_of_a_newly_registered_node_does_not_end_a_run(tmp_path: Path) -> None:
    """Somebody is missing, so the server asks whoever is new for its name."""
    refusing = {6: registered({"refusal": "not with me"}), 7: lambda m: Message(Error(2, "boom"), reply_to=m)}
    grid = Crowd(dealt_nodes(3), {**STRANGERS, **refusing}, since=3)
    gone = grid.nodes[101]

    def leaves(message: Message) -> Message:
        grid.nodes.pop(101)
        grid.nodes[901] = gone
        return Message(Error(5, "Node unavailable"), reply_to=message)

    grid.faults[101] = [leaves]
    run = on_flower(small(schedule={"rounds": 3}, evaluate={"also": []}), tmp_path / "run", grid)

    assert [row["participants"] for row in run.rounds] == [[0, 2], [0, 1, 2], [0, 1, 2]]


def test_who_was_left_out_is_named_when_too_few_came(tmp_path: Path) -> None:
    grid = Crowd(dealt_nodes(2), {2: registered({"registration": "me"})})
    with pytest.raises(
        PotluckError, match=r"2 of 3 nodes answered .* One was left out: A node's registration"
    ):
        on_flower(small(engine={"wait": 0.05}), tmp_path / "run", grid)


def test_a_refusal_ends_the_start_where_the_run_waits_for_just_that_node(tmp_path: Path) -> None:
    grid = Crowd(dealt_nodes(2), {2: registered({"refusal": "my labels do not fit"})})
    with pytest.raises(PotluckError, match="my labels do not fit"):
        on_flower(small(), tmp_path / "run", grid)
