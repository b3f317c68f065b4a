"""The Flower engine on an in-process grid: the serial engine's bits, and failures."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Error, Message

import potluck
from potluck.core.errors import PotluckError
from potluck.core.tree import Flat
from potluck.experiment import parse_experiment
from potluck.flower import record
from potluck.flower.client_app import app
from potluck.flower.server_app import parse_configuration, serve
from potluck.runs.run import Run
from potluck.wire import Message as WireMessage
from support.loopgrid import LoopGrid, dealt_nodes
from support.own_nodes import combined_federation, experiment, serial_values, three_nodes

SMALL: dict[str, Any] = {
    "data": {"limit": 90, "split": "6:2:2"},
    "partition": {"clients": 3, "rule": "iid"},
    "training": {"epochs": 1, "batch_size": 8},
    "schedule": {"rounds": 2},
    "evaluate": {"also": ["received"]},
}


def small(method: str = "fedgh", **sections: dict[str, Any]) -> dict[str, Any]:
    return {
        **SMALL,
        "method": {"name": method},
        **{k: {**SMALL.get(k, {}), **v} for k, v in sections.items()},
    }


def config(values: dict[str, Any], out: Path, **more: Any) -> dict[str, Any]:
    experiment = parse_experiment({**values, "engine": {"name": "flower", **values.get("engine", {})}})
    return {"experiment": experiment.model_dump_json(exclude_none=True), "out": str(out), **more}


def on_flower(values: dict[str, Any], out: Path, grid: LoopGrid | None = None, **more: Any) -> Run:
    grid = grid or LoopGrid(dealt_nodes(values["partition"]["clients"]), {})
    return serve(grid, config(values, out, **more), poll_interval=0)


def same(actual: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Every number but the wall time."""
    return [{**row, "seconds": 0} for row in actual] == [{**row, "seconds": 0} for row in expected]


def node_states(out: Path, jobs: int) -> list[dict[str, torch.Tensor]]:
    from potluck.wire import decode_state

    files = sorted((out / "nodes").glob(f"*/*/state-{jobs}.safetensors"))
    return [decode_state(file.read_bytes()).tensors for file in files]


class Weights(potluck.Callback):
    """All clients' tensors at the end of a serial run."""

    def on_end(self, end: potluck.End) -> None:
        from potluck.core.tree import flatten

        self.states = [flatten(end.fetch(client)).tensors for client in range(3)]


@pytest.mark.parametrize("method", ["fedgh", "pfedafm", "fedin", "fedl2g-f"])
def test_synchronous_run_has_the_bits_of_the_serial_engine(tmp_path: Path, method: str) -> None:
    weights = Weights()
    serial = potluck.run(
        small(method, engine={"name": "serial"}), out=tmp_path / "serial", callbacks=[weights]
    )
    flower = on_flower(small(method), tmp_path / "flower")

    assert same(flower.rounds, serial.rounds)
    assert flower.clients == serial.clients
    assert flower.summary["client_accuracy"] == serial.summary["client_accuracy"]
    for node_state, serial_state in zip(
        node_states(tmp_path / "flower", jobs=2), weights.states, strict=True
    ):
        assert node_state.keys() == serial_state.keys()
        assert all(torch.equal(node_state[name], serial_state[name]) for name in node_state)


@pytest.mark.parametrize("kind", ["noise", "backdoor"])
def test_attackers_are_the_same_clients_as_on_the_serial_engine(tmp_path: Path, kind: str) -> None:
    values = small(attack={"kind": kind, "share": 0.4})
    serial = potluck.run({**values, "engine": {"name": "serial"}}, out=tmp_path / "serial")
    flower = on_flower(values, tmp_path / "flower")

    assert same(flower.rounds, serial.rounds)
    assert "attack_success" in serial.rounds[-1]["notes"]
    assert flower.summary["attack"] == serial.summary["attack"]


@pytest.mark.parametrize("method", ["fedgh", "fedl2g-f"])
def test_nodes_with_classes_of_their_own_have_the_bits_of_one_process(tmp_path: Path, method: str) -> None:
    paths = three_nodes(tmp_path)
    values = experiment(method).model_dump(exclude_none=True)
    own = {200 + index: {"node-file": str(path)} for index, path in enumerate(paths)}

    serial = potluck.run(
        serial_values(experiment(method)),
        federation=combined_federation(experiment(method), paths),
        out=tmp_path / "serial",
    )
    flower = on_flower(values, tmp_path / "flower", LoopGrid(dict(reversed(own.items())), {}))

    assert same(flower.rounds, serial.rounds)
    node_only = {"confusion", "calibration"}  # a node tells nobody which classes it has
    assert list(flower.clients) == [
        {k: v for k, v in row.items() if k not in node_only} for row in serial.clients
    ]
    assert any(node_only <= row.keys() for row in serial.clients)
    assert flower.summary["models"] == ["mlp-1+6", "mlp-3+6", "of_node_2:Wards"]
    assert not (tmp_path / "flower" / "nodes").exists()  # private state is with the nodes


def test_fedhe_is_answered_at_each_arrival(tmp_path: Path) -> None:
    values = small("fedhe", schedule={"rounds": 2, "concurrency": 3}, evaluate={"also": []})
    grid = LoopGrid(dealt_nodes(3), {}, delays={100: 6})  # client 0 is slow

    run = on_flower(values, tmp_path / "run", grid)

    participants = [row["participants"][0] for row in run.rounds]
    assert all(len(row["participants"]) == 1 for row in run.rounds)
    assert participants[0] != 0
    slow = next(row for row in run.rounds if row["participants"] == [0])
    assert slow["staleness"] == [participants.index(0)] != [0]


def raised(message: Message) -> Message:
    """What comes back when the app of a node dies of an exception."""
    return Message(Error(2, "RuntimeError: out of memory"), reply_to=message)


def never(message: Message) -> Message | None:
    return None


def spoiled(change: Any) -> Any:
    """An honest answer, changed on its way."""

    def fault(message: Message) -> Message:
        from flwr.app import Context, RecordDict

        node = {"partition-id": message.metadata.dst_node_id - 100}
        letter = record.from_record(app(message, Context(1, 1, node, RecordDict(), {})).content, 1 << 30)
        return Message(record.to_record(change(letter)), reply_to=message)

    return fault


def with_means(means: Any) -> Any:
    return lambda letter: changed(letter, "means", means)


def wrong_label(letter: WireMessage) -> WireMessage:
    return changed(letter, "labels", lambda labels: labels + 90)


def changed(letter: WireMessage, name: str, change: Any) -> WireMessage:
    flat = letter.payload
    assert flat is not None
    return replace(letter, payload=Flat({**flat.tensors, name: change(flat.tensors[name])}, flat.layout))


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (raised, "lost", "out of memory"),
        (spoiled(with_means(lambda m: m[:, :-1].contiguous())), "invalid", "has shape"),
        (spoiled(with_means(lambda m: m * float("nan"))), "invalid", "not finite"),
        (spoiled(with_means(lambda m: m.double())), "invalid", "must be torch.float32"),
        (spoiled(wrong_label), "invalid", "class id outside"),
        (spoiled(lambda letter: WireMessage({"answer": "nonsense"})), "invalid", "no answer"),
    ],
)
def test_run_goes_on_without_a_client_that_fails(tmp_path: Path, fault: Any, kind: str, reason: str) -> None:
    grid = LoopGrid(dealt_nodes(3), {}, faults={101: [fault]})

    run = on_flower(small(), tmp_path / "run", grid)

    first, second = run.rounds
    assert first["participants"] == [0, 2]
    assert second["participants"] == [0, 1, 2]
    (failure,) = first["failures"]
    assert (failure["client"], failure["kind"]) == (1, kind)
    assert reason in failure["reason"]


def test_a_client_that_raises_is_named_and_its_trace_stays_at_home(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = small("support.troubled:Troubled", schedule={"on_failure": "continue"})

    run = on_flower(values, tmp_path / "run")

    assert [row["participants"] for row in run.rounds] == [[0, 2], [0, 2]]
    (failure,) = run.rounds[0]["failures"]
    assert failure["reason"] == "train in round 1: RuntimeError: no room for client-1"
    assert "Traceback" in caplog.text  # the node's own log


def test_raising_client_stops_the_run_where_configured(tmp_path: Path) -> None:
    with pytest.raises(PotluckError, match="Troubled, client 1 'client-1', train in round 1: RuntimeError"):
        on_flower(small("support.troubled:Troubled"), tmp_path / "run")


class Late:
    """Does its first job too, but nobody hears of it in time."""

    def __init__(self) -> None:
        self.first = ""

    def __call__(self, message: Message) -> Message | None:
        from flwr.app import Context, RecordDict

        number = message.metadata.message_id
        if self.first in ("", number):
            if not self.first:
                app(message, Context(1, 1, {"partition-id": 2}, RecordDict(), {}))
            self.first = number
            return None
        return app(message, Context(1, 1, {"partition-id": 2}, RecordDict(), {}))


def test_slow_client_is_dropped_at_the_deadline_and_takes_part_in_the_next_round(tmp_path: Path) -> None:
    values = small(schedule={"rounds": 2, "deadline": 4.0}, evaluate={"also": []})
    grid = LoopGrid(dealt_nodes(3), {}, faults={102: [Late()]})

    run = on_flower(values, tmp_path / "run", grid)

    assert [row["participants"] for row in run.rounds] == [[0, 1], [0, 1, 2]]
    (failure,) = run.rounds[0]["failures"]
    assert (failure["client"], failure["kind"]) == (2, "late")
    assert failure["reason"] == "no answer within 4 seconds"
    train = [message for message in grid.pushed if message.metadata.message_type == "train"]
    assert {message.metadata.ttl for message in train} == {4.0}
    assert len(node_states(tmp_path / "run", jobs=2)) == 3  # the late client trained on what it had


def test_node_that_comes_back_under_its_name_goes_on_with_its_state(tmp_path: Path) -> None:
    class Restart(LoopGrid):
        def push_messages(self, messages: Any) -> list[str]:
            messages = list(messages)
            trains = sum(m.metadata.message_type == "train" for m in self.pushed)
            if (
                trains == 3 and 101 in self.nodes
            ):  # after round 1 the node is gone, and soon back with a new id
                self.nodes[901] = self.nodes.pop(101)
            return super().push_messages(messages)

    grid = Restart(dealt_nodes(3), {})
    run = on_flower(small(schedule={"rounds": 4}, evaluate={"also": []}), tmp_path / "run", grid)

    assert [1 in row["participants"] for row in run.rounds] == [True, False, True, True]
    assert run.rounds[1]["failures"][0]["kind"] == "lost"
    assert len(node_states(tmp_path / "run", jobs=4)) == 3


def test_oversized_answer_is_refused_unread(tmp_path: Path) -> None:
    values = small(schedule={"rounds": 1, "min_clients": 0, "max_payload_mb": 0.002})

    run = on_flower(values, tmp_path / "run")

    reasons = {failure["reason"] for failure in run.rounds[0]["failures"]}
    assert len(run.rounds[0]["failures"]) == 3
    assert all("the limit is 2097" in reason for reason in reasons)


def test_missing_nodes_are_named_with_the_remedy(tmp_path: Path) -> None:
    values = small(engine={"wait": 0.05})
    with pytest.raises(
        PotluckError, match="2 of 3 nodes answered within engine.wait = 0.05 seconds; start the"
    ):
        on_flower(values, tmp_path / "run", LoopGrid(dealt_nodes(2), {}))


def test_two_nodes_of_one_name_are_refused(tmp_path: Path) -> None:
    grid = LoopGrid({100: {"partition-id": 0}, 101: {"partition-id": 0}, 102: {"partition-id": 2}}, {})
    with pytest.raises(PotluckError, match="Two nodes are called 'client-0'; give each its own name"):
        on_flower(small(), tmp_path / "run", grid)


def test_configuration_is_a_name_a_file_or_json(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('seed = 7\n[method]\nname = "fedin"\n')

    assert parse_configuration("fedavg").method.name == "fedavg"
    assert parse_configuration(str(tmp_path / "one.toml")).seed == 7
    assert parse_configuration(json.dumps({"seed": 3})).engine.name == "flower"


class Killed(Exception):
    """The server's process is gone."""


def test_a_server_that_dies_goes_on_from_its_checkpoint_and_nothing_is_trained_twice(tmp_path: Path) -> None:
    class Dying(LoopGrid):
        """Dies when two of the three answers of round 3 have come, which is after those nodes committed them."""

        came = 0

        def pull_messages(self, message_ids: Any) -> list[Message]:
            replies = super().pull_messages(message_ids)
            trained = [m for m in self.pushed if m.metadata.message_type == "train"]
            self.came += len(replies) if len(trained) == 9 else 0
            if self.came == 2:
                raise Killed
            return replies

    values = small(schedule={"rounds": 5}, evaluate={"also": []})
    serial = potluck.run({**values, "engine": {"name": "serial"}}, out=tmp_path / "serial")
    with pytest.raises(Killed):
        on_flower(values, tmp_path / "run", Dying(dealt_nodes(3), {}, faults={102: [None, None, never]}))
    assert len(node_states(tmp_path / "run", jobs=3)) == 2  # two nodes are a round ahead of the server

    run = on_flower(values, tmp_path / "run", LoopGrid(dealt_nodes(3, first=500), {}), resume=True)

    assert same(run.rounds, serial.rounds)
    assert run.clients == serial.clients
    assert run.summary["final_accuracy"] == serial.summary["final_accuracy"]


def test_answers_are_clipped_on_the_node_before_they_leave_it(tmp_path: Path) -> None:
    private = {"clip": 1.0}
    serial = potluck.run(small(privacy=private, engine={"name": "serial"}), out=tmp_path / "serial")
    plain = potluck.run(small(engine={"name": "serial"}), out=tmp_path / "plain")

    flower = on_flower(small(privacy=private), tmp_path / "flower")

    assert same(flower.rounds, serial.rounds)
    assert not same(flower.rounds, plain.rounds)


def test_what_ran_on_own_nodes_is_recorded_and_settings_that_cannot_act_there_are_refused(
    tmp_path: Path,
) -> None:
    own = {200 + index: {"node-file": str(path)} for index, path in enumerate(three_nodes(tmp_path))}
    values = experiment("fedgh").model_dump(exclude_none=True)

    with pytest.raises(
        PotluckError, match=r"data.limit = 50 has no effect: it does not apply to the nodes' own data"
    ):
        on_flower({**values, "data": {"limit": 50}}, tmp_path / "refused", LoopGrid(own, {}))
    on_flower(values, tmp_path / "run", LoopGrid(own, {}))

    recorded = tomllib.loads((tmp_path / "run" / "experiment.toml").read_text())
    assert recorded["data"]["name"] == "own nodes"
    assert "limit" not in recorded["data"]
    assert recorded["partition"] == {"rule": "own", "clients": 3}
    assert recorded["models"]["names"] == ["mlp-1+6", "mlp-3+6", "of_node_2:Wards"]
    assert on_flower(recorded, tmp_path / "run", LoopGrid(own, {}), resume=True).was_finished


def test_newcomers_join_on_their_nodes(tmp_path: Path) -> None:
    values = small("fedproto", partition={"clients": 4}, evaluate={"newcomers": 0.5})
    flower = on_flower(values, tmp_path / "flower")
    serial = potluck.run({**values, "engine": {"name": "serial"}}, out=tmp_path / "serial")
    assert len(flower.summary["newcomers"]["clients"]) == 2
    assert flower.summary["newcomers"] == serial.summary["newcomers"]
    assert same(flower.rounds, serial.rounds)
