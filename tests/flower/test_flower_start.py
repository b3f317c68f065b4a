"""Start of a run on Flower: clients accepted, excluded and recognised after a restart."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message, RecordDict
from test_flower_loop import on_flower, same, small

from potluck.core.errors import PotluckError
from potluck.flower import record, registry
from potluck.flower.client_app import app
from potluck.flower.node.registration import Registration
from potluck.flower.start import OwnDataNodes
from potluck.methods import method_class
from potluck.wire import Message as WireMessage
from support.loopgrid import LoopGrid, dealt_nodes
from support.own_nodes import experiment, node_registrations, three_nodes, write_node


class Lying(LoopGrid):
    """Own nodes, of which some claim other facts than theirs when they introduce themselves."""

    def __init__(self, paths: Sequence[Path], lies: dict[int, dict[str, Any]], **more: Any) -> None:
        super().__init__({200 + i: {"node-file": str(path)} for i, path in enumerate(paths)}, {}, **more)
        self.lies = lies

    def _reply(self, node: int, message: Message) -> Message | None:
        reply = super()._reply(node, message)
        kind = record.from_record(message.content, 1 << 30).facts.get("ask")
        if reply is None or kind != "registration" or node - 200 not in self.lies:
            return reply
        facts = dict(record.from_record(reply.content, 1 << 30).facts["registration"])
        told = WireMessage({"registration": facts | self.lies[node - 200]})
        return Message(record.to_record(told), reply_to=message)

    def asked(self, kind: str) -> list[tuple[int, str]]:
        """Which nodes were asked this, and why."""
        letters = [
            (message.metadata.dst_node_id, record.from_record(message.content, 1 << 30))
            for message in self.pushed
        ]
        return [
            (node, letter.facts.get("why", "")) for node, letter in letters if letter.facts.get("ask") == kind
        ]


def own(method: str = "fedgh", **more: Any) -> dict[str, Any]:
    values = experiment(method, **more).model_dump(exclude_none=True)
    return {**values, "engine": {**values["engine"], "wait": 0.3, **more.get("engine", {})}}


LIES = [
    ({"input_shape": [5]}, r"Node 'node-1' has rows of shape \(5,\), the others \(4,\)"),
    ({"head": {"weight": [9, 6], "bias": [9]}}, "has a model for 9 classes, and engine.classes = 3"),
    ({"feature_dim": 7}, "has a head for 6 features, and says that it has 7"),
    ({"feature_dim": 7, "head": {"weight": [3, 7], "bias": [3]}}, "does not fit the others: FedGH needs .*: its model"),
    ({"head": {}, "stage_shapes": [[0]]}, "does not fit the others"),
    ({"tensors": {"w": ["float64", 2]}, "parameters": ["w"]}, "has parameters of type float64, and models.precision"),
    ({"samples": -1}, "registration could not be read: samples"),
]  # fmt: skip


@pytest.mark.parametrize(("lie", "sentence"), LIES)
def test_a_node_that_contradicts_the_others_does_not_keep_them_from_starting(
    tmp_path: Path, lie: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Lying(three_nodes(tmp_path), {1: lie})

    run = on_flower(own(), tmp_path / "run", grid)

    assert [row["participants"] for row in run.rounds] == [[0, 1], [0, 1]]
    assert run.summary["clients"] == 2
    on_record = json.loads((tmp_path / "run" / "nodes.json").read_text())
    assert [client["name"] for client in on_record["clients"]] == ["node-0", "node-2"]
    (why,) = on_record["left_out"]
    assert re.search(sentence, why)
    assert grid.asked("leave") == [(201, why)]
    grid.pull_messages([message.metadata.message_id for message in grid.pushed])  # the node reads it
    assert f"The server excludes this node: {why}" in caplog.text


def test_unfit_node_is_replaced_by_another(tmp_path: Path) -> None:
    paths = [*three_nodes(tmp_path), write_node(tmp_path / "n3", "node-3", "mlp-1+6", 3)]
    grid = Lying(paths, {0: {"input_shape": [5]}})

    run = on_flower(
        own(engine={"name": "flower", "nodes": 3, "classes": 3, "wait": 250}), tmp_path / "run", grid
    )

    assert [row["participants"] for row in run.rounds] == [[0, 1, 2]] * 2
    assert [client.name for client in clients(tmp_path / "run")] == ["node-1", "node-2", "node-3"]


@pytest.mark.parametrize("nodes", [2, 3])
def test_contradiction_without_majority_excludes_no_node(tmp_path: Path, nodes: int) -> None:
    lies = {1: {"input_shape": [5]}, 2: {"input_shape": [6]}}
    grid = Lying(three_nodes(tmp_path)[:nodes], lies)
    with pytest.raises(
        PotluckError, match=r"rows have different shapes \(\(4,\) of 'node-0', \(5,\) of 'node-1'"
    ):
        on_flower(
            own(engine={"name": "flower", "nodes": nodes, "classes": 3, "wait": 0.3}), tmp_path / "run", grid
        )


def test_a_run_that_wants_all_of_them_says_who_does_not_fit(tmp_path: Path) -> None:
    grid = Lying(three_nodes(tmp_path), {1: {"input_shape": [5]}})
    values = own(schedule={"rounds": 2, "min_clients": 3})
    with pytest.raises(PotluckError, match=r"Node 'node-1' has rows of shape \(5,\)"):
        on_flower(values, tmp_path / "run", grid)


class Silent(Lying):
    """Node 1 is connected and never says a word, or says that it does not want to."""

    word: str = ""

    def _reply(self, node: int, message: Message) -> Message | None:
        if node != 201:
            return super()._reply(node, message)
        refusal = WireMessage({"refusal": self.word})
        return Message(record.to_record(refusal), reply_to=message) if self.word else None


def test_a_node_that_says_nothing_does_not_keep_the_others_from_starting(tmp_path: Path) -> None:
    run = on_flower(own(), tmp_path / "run", Silent(three_nodes(tmp_path), {}))
    assert [row["participants"] for row in run.rounds] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("on_failure", ["stop", "continue"])
def test_whether_a_run_begins_without_a_node_that_refuses_is_for_on_failure_to_say(
    tmp_path: Path, on_failure: str
) -> None:
    grid = Silent(three_nodes(tmp_path), {})
    grid.word = "not with my data"
    values = own(schedule={"rounds": 2, "on_failure": on_failure})
    if on_failure == "stop":
        with pytest.raises(PotluckError, match="not with my data"):
            on_flower(values, tmp_path / "run", grid)
    else:
        assert [row["participants"] for row in on_flower(values, tmp_path / "run", grid).rounds] == [
            [0, 1]
        ] * 2


def test_several_contradicting_nodes_are_identified(tmp_path: Path) -> None:
    (honest,) = node_registrations(experiment(), three_nodes(tmp_path)[:1])
    wide = {"feature_dim": 7, "head": {"weight": [3, 7], "bias": [3]}}
    lies: list[dict[str, Any]] = [{}, {"input_shape": [9]}, {}, wide, {}, {}, {"head": {}}]
    registrations = [replace(honest, name=f"node-{i}", **lie) for i, lie in enumerate(lies)]

    incompatible = OwnDataNodes(experiment(), method_class("fedgh")()).find_incompatible(registrations)

    assert sorted(incompatible) == ["node-1", "node-3", "node-6"]


def test_a_claim_of_the_largest_model_does_not_make_the_others_the_odd_ones(tmp_path: Path) -> None:
    """HeteroFL's clients are slices of the widest; a liar says that its own, of another form, is the widest."""
    (honest,) = node_registrations(experiment(), three_nodes(tmp_path)[:1])
    larger = {name: [kind, *(2 * side for side in sides)] for name, (kind, *sides) in honest.tensors.items()}
    renamed = {f"other.{name}": entry for name, entry in larger.items()}
    lie = {"tensors": renamed, "parameters": sorted(renamed)}
    registrations = [replace(honest, name=f"node-{i}", **(lie if i == 0 else {})) for i in range(3)]

    incompatible = OwnDataNodes(experiment("heterofl"), method_class("heterofl")()).find_incompatible(
        registrations
    )

    assert list(incompatible) == ["node-0"]
    assert "is no slice of" in incompatible["node-0"]


# -- a run that goes on ---------------------------------------------------------------------------------------------


class Killed(Exception):
    """The server's process is gone."""


class Dies(Lying):
    """Dies when the jobs of the third round are sent."""

    def push_messages(self, messages: Any) -> list[str]:
        if sum(message.metadata.message_type == "train" for message in self.pushed) == 6:
            raise Killed
        return super().push_messages(messages)


def begun(tmp_path: Path, method: str = "fedgh") -> tuple[list[Path], dict[str, Any]]:
    """A run of four rounds that was lost after two."""
    paths, values = three_nodes(tmp_path), own(method, schedule={"rounds": 4})
    with pytest.raises(Killed):
        on_flower(values, tmp_path / "run", Dies(paths, {}))
    return paths, values


def clients(run: Path) -> list[Registration]:
    return [Registration(**entry) for entry in json.loads((run / "nodes.json").read_text())["clients"]]


class Away(Lying):
    """Flower says of a node, when it is first asked, that it has missed its heartbeats."""

    def _reply(self, node: int, message: Message) -> Message | None:
        gone = message is self.pushed[1]
        return (
            Message(Error(5, "Node Unavailable"), reply_to=message) if gone else super()._reply(node, message)
        )


@pytest.mark.parametrize("resume", [False, True])
def test_a_node_that_is_away_at_the_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    monkeypatch.setattr(registry, "RETRY_GONE_SECONDS", 0.0)
    paths, values = begun(tmp_path) if resume else (three_nodes(tmp_path), own(schedule={"rounds": 4}))
    values["engine"]["wait"] = 250

    run = on_flower(values, tmp_path / "run", Away(paths, {}), resume=resume)
    plain = on_flower(values, tmp_path / "plain", Lying(three_nodes(tmp_path / "again"), {}))

    assert same(run.rounds, plain.rounds)
    assert json.loads((tmp_path / "run" / "nodes.json").read_text())["left_out"] == []


def test_a_run_goes_on_without_a_node_that_is_gone_for_good(tmp_path: Path) -> None:
    paths, values = begun(tmp_path)
    grid = Lying(paths, {})
    del grid.nodes[201]

    run = on_flower(values, tmp_path / "run", grid, resume=True)

    assert [row["participants"] for row in run.rounds] == [[0, 1, 2]] * 2 + [[0, 2]] * 2
    (lost,) = run.rounds[-1]["failures"]
    assert (lost["client"], lost["kind"]) == (1, "lost")
    assert "not connected" in lost["reason"]


def test_a_run_goes_on_with_the_nodes_that_it_began_with_and_no_others(tmp_path: Path) -> None:
    paths, values = begun(tmp_path)
    before = clients(tmp_path / "run")
    newcomer = write_node(tmp_path / "n9", "a-first", "mlp-1+6", 9)

    run = on_flower(values, tmp_path / "run", Lying([newcomer, *paths], {}), resume=True)

    assert [row["participants"] for row in run.rounds] == [[0, 1, 2]] * 4
    assert clients(tmp_path / "run") == before


def test_a_node_that_became_another_is_left_out_of_a_run_that_goes_on(tmp_path: Path) -> None:
    paths, values = begun(tmp_path)

    run = on_flower(values, tmp_path / "run", Lying(paths, {1: {"samples": 10**6}}), resume=True)

    assert [row["participants"] for row in run.rounds][2:] == [[0, 2]] * 2
    (why,) = json.loads((tmp_path / "run" / "nodes.json").read_text())["left_out"]
    assert why.startswith("Node 'node-1' has another samples than when this run began (1000000, not 18)")


def test_run_without_nodes_stops(tmp_path: Path) -> None:
    _, values = begun(tmp_path)
    with pytest.raises(
        PotluckError, match="0 of this run's 3 nodes were back within .* start 'node-0', 'node-1'"
    ):
        on_flower(values, tmp_path / "run", Lying([], {}), resume=True)


def test_a_record_of_the_nodes_that_was_changed_is_one_sentence(tmp_path: Path) -> None:
    paths, values = begun(tmp_path)
    (tmp_path / "run" / "nodes.json").write_text("[" * 100_000)
    with pytest.raises(PotluckError, match="nodes.json' was changed and cannot be read"):
        on_flower(values, tmp_path / "run", Lying(paths, {}), resume=True)


class Weights(LoopGrid):
    """Three nodes with one kind of model, of which the first sends no usable first weights."""

    def _reply(self, node: int, message: Message) -> Message | None:
        facts = record.from_record(message.content, 1 << 30).facts
        if node == 200 and facts.get("ask") == "first weights":
            return Message(record.to_record(WireMessage({"first weights": "none"})), reply_to=message)
        return super()._reply(node, message)


def test_first_weights_come_from_any_node_of_a_kind_and_are_kept(tmp_path: Path) -> None:
    paths = [write_node(tmp_path / f"n{i}", f"node-{i}", "mlp-1+6", i) for i in range(3)]
    nodes = {200 + i: {"node-file": str(path)} for i, path in enumerate(paths)}
    values = own("fedavg", schedule={"rounds": 2})
    first = on_flower(values, tmp_path / "run", Weights(dict(nodes), {}))
    values["schedule"]["rounds"] = 3
    grid = LoopGrid({node: config for node, config in nodes.items() if node == 202}, {})

    longer = on_flower(values, tmp_path / "run", grid, resume=True)

    assert [row["participants"] for row in first.rounds] == [[0, 1, 2]] * 2
    assert [row["participants"] for row in longer.rounds] == [[0, 1, 2]] * 2 + [[2]]


# -- dealt data -----------------------------------------------------------------------------------------------------


class Impostor(LoopGrid):
    """Node 99 takes the name of client-1 before the true one is there."""

    def get_node_ids(self) -> list[int]:
        return [99, *(node for node in self.nodes if node != 101 or len(self.pushed) > 3)]

    def _reply(self, node: int, message: Message) -> Message | None:
        if node != 99:
            return super()._reply(node, message)
        reply = app(message, Context(1, 99, self.nodes[101], RecordDict(), {}))
        facts = dict(record.from_record(reply.content, 1 << 30).facts)
        told = WireMessage({"registration": {**facts["registration"], "samples": 10**6}})
        return Message(record.to_record(told), reply_to=message)


def test_an_impostor_of_a_client_whose_facts_are_known_does_not_take_its_place(tmp_path: Path) -> None:
    values = small(evaluate={"also": []})
    grid = Impostor(dealt_nodes(3), {})

    run = on_flower(values, tmp_path / "run", grid)

    assert [row["participants"] for row in run.rounds] == [[0, 1, 2]] * 2
    assert {
        message.metadata.dst_node_id for message in grid.pushed if message.metadata.message_type == "train"
    } == {
        100,
        101,
        102,
    }
