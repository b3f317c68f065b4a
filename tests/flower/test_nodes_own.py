"""Nodes with their own data and models: what the server learns, what messages may do, what is rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from potluck.core.errors import PotluckError
from potluck.core.method import payload_types
from potluck.core.payload import EmptyPayload
from potluck.experiment import parse_experiment
from potluck.flower.node import node as node_side
from potluck.flower.node.check import check_node
from potluck.flower.node.config import read_node
from potluck.flower.node.federation import node_federation, server_federation
from potluck.flower.node.host import NodeHost
from potluck.flower.node.registration import Assignment
from potluck.methods import method_class
from potluck.runs.plan import Parts
from potluck.runs.resolve import resolve
from potluck.wire import Message as WireMessage
from potluck.wire import pack_job, unpack_result
from potluck.wire.jobs import Job
from support.own_nodes import experiment, node_registrations, three_nodes, write_node


def test_the_server_knows_names_counts_and_shapes_only(tmp_path: Path) -> None:
    (path, *_) = three_nodes(tmp_path)
    (registration,) = node_registrations(experiment(), [path])
    facts = json.loads(json.dumps(registration.message().facts))["registration"]
    assert set(facts) == {
        "name", "samples", "architecture", "device", "input_shape", "feature_dim", "tensors", "parameters", "head",
        "stage_shapes", "width_rate", "validation",
    }  # fmt: skip
    assert (facts["name"], facts["samples"], facts["validation"], facts["input_shape"]) == (
        "node-0",
        18,
        0,
        [4],
    )
    assert registration.message().payload is registration.message().state is None


def test_first_weights_are_asked_for_only_where_the_server_uses_them(tmp_path: Path) -> None:
    paths = three_nodes(tmp_path)
    requests: list[int] = []

    def weights(client: int) -> dict[str, torch.Tensor]:
        requests.append(client)
        return node_federation(alike, read_node(paths[0])).task.architectures["mlp-1+6"].initial

    settings = experiment("fedgh")
    server_federation(settings, method_class("fedgh")(), node_registrations(settings, paths), weights)
    assert requests == []
    alike = experiment("fedavg")
    registrations = node_registrations(alike, paths[:1])
    task = server_federation(alike, method_class("fedavg")(), registrations, weights).task
    assert requests == [0]
    assert all(torch.isfinite(tensor).all() for tensor in task.architectures["mlp-1+6"].initial.values())


def test_two_models_of_one_name_and_different_shapes_are_two_architectures(tmp_path: Path) -> None:
    settings = experiment()
    (first, *_) = node_registrations(settings, [write_node(tmp_path / "a", "a", "{module}:Wards", 1)])
    (second, *_) = node_registrations(settings, [write_node(tmp_path / "b", "b", "{module}:Wards", 2)])
    object.__setattr__(second, "architecture", first.architecture)
    task = server_federation(settings, method_class("fedgh")(), [first, second], lambda client: {}).task
    assert [info.architecture for info in task.clients] == ["of_a:Wards", "of_a:Wards-2"]


def test_a_repeated_job_gives_the_stored_answer_and_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_node(tmp_path / "n", "solo", "mlp-1+6", 3)
    order = Assignment(experiment("standalone").model_dump_json(exclude_none=True), "ab12")
    message = order.attach_to(
        pack_job(Job(1, "train", 0, 0, round=1, rounds=2, message=EmptyPayload(), tests=("own",)))
    )

    first = NodeHost().handle_message(message, {"node-file": str(path)})
    monkeypatch.setattr(node_side.Node, "_run_job", lambda *_: pytest.fail("trained twice"))
    again = NodeHost().handle_message(message, {"node-file": str(path)})

    assert again.facts == first.facts
    assert first.facts["answer"]["trained_samples"] == 18
    assert (tmp_path / "n" / "potluck-state" / "ab12" / "state-1.safetensors").exists()


def test_a_message_of_the_wrong_type_is_refused(tmp_path: Path) -> None:
    path = write_node(tmp_path / "n", "strict", "mlp-1+6", 3)
    settings = experiment("lg-fedavg")
    order = Assignment(settings.model_dump_json(exclude_none=True), "ab12")
    job = Job(1, "train", 0, 0, round=1, rounds=2, message=EmptyPayload())
    flat = NodeHost().handle_message(order.attach_to(pack_job(job)), {"node-file": str(path)})
    result = unpack_result(flat, payload_types(settings.build_method())[1], job)
    assert result.kind == "invalid"
    assert "lacks the tensor" in result.reason


@pytest.mark.parametrize("run", ["../../etc", "run/one", "Ü", "a" * 33])
def test_a_run_id_cannot_name_another_folder(tmp_path: Path, run: str) -> None:
    path = write_node(tmp_path / "n", "careful", "mlp-1+6", 3)
    order = Assignment(experiment().model_dump_json(exclude_none=True), run)
    flat = NodeHost().handle_message(
        order.attach_to(WireMessage({"ask": "registration"})), {"node-file": str(path)}
    )
    assert "is not one of Potluck's" in flat.facts["refusal"]


def test_check_says_what_it_tried(tmp_path: Path) -> None:
    path = write_node(tmp_path / "n", "ready", "{module}:Wards", 4)
    lines = "\n".join(check_node(path, parse_experiment({})))
    assert "18 training and 6 test rows of shape (4,)" in lines
    assert "of_ready:Wards" in lines
    assert "one training step: loss" in lines


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('model = "mlp-9"', "Unknown model 'mlp-9'"),
        ('model = "of_wrong:Nothing"', "model = 'of_wrong:Nothing' could not be imported"),
        ('name = "two words"', "name is not valid"),
        ('colour = "red"', "colour is not valid"),
    ],
)
def test_mistakes_in_a_node_file_are_one_sentence(tmp_path: Path, line: str, sentence: str) -> None:
    path = write_node(tmp_path / "n", "wrong", "mlp-1+6", 3)
    field = line.split(" ")[0]
    lines = [old for old in path.read_text().splitlines() if not old.startswith(f"{field} =")]
    path.write_text("\n".join([line, *lines]))
    with pytest.raises(PotluckError, match=sentence):
        check_node(path, parse_experiment({}))


def test_labels_beyond_the_agreed_classes_are_refused(tmp_path: Path) -> None:
    path = write_node(tmp_path / "n", "beyond", "mlp-1+6", 3)
    settings = experiment(engine={"name": "flower", "nodes": 1, "classes": 2})
    with pytest.raises(PotluckError, match="Node 'beyond' has label 2 but engine.classes = 2"):
        node_federation(settings, read_node(path))


def test_the_middle_part_of_a_nodes_split_is_kept_for_validation(tmp_path: Path) -> None:
    paths = three_nodes(tmp_path)
    for path in paths:
        path.write_text(path.read_text().replace('split = "75:25"', 'split = "50:25:25"'))
    (member,) = node_federation(experiment(), read_node(paths[0])).members
    assert [len(part) for part in (member.train, member.validation, member.test)] == [12, 6, 6]
    registrations = node_registrations(experiment(), paths)
    assert [registration.validation for registration in registrations] == [6, 6, 6]
    method = experiment().build_method()
    federation = server_federation(experiment(), method, registrations, lambda client: {})
    assert [info.validation for info in federation.task.clients] == [6, 6, 6]
    assert resolve(experiment(), Parts(method, nodes=federation)).experiment.evaluate.select == "validation"
    assert "12 training, 6 validation and 6 test rows" in "\n".join(check_node(paths[0], experiment()))


def test_validation_asked_of_nodes_that_have_none_is_refused(tmp_path: Path) -> None:
    settings = experiment(evaluate={"select": "validation"})
    method = settings.build_method()
    federation = server_federation(
        settings, method, node_registrations(settings, three_nodes(tmp_path)), lambda client: {}
    )
    with pytest.raises(PotluckError, match=r"set split = '8:1:1' in the nodes' node\.toml"):
        resolve(settings, Parts(method, nodes=federation))


def test_a_node_tells_how_good_it_is_and_not_which_classes_it_has(tmp_path: Path) -> None:
    path = write_node(tmp_path / "n", "discreet", "mlp-1+6", 3)
    settings = experiment("standalone")
    order = Assignment(settings.model_dump_json(exclude_none=True), "ab12")
    job = Job(1, "evaluate", 0, 0, round=1, rounds=2, message=EmptyPayload(), tests=("own",), details=True)
    reply = NodeHost().handle_message(order.attach_to(pack_job(job)), {"node-file": str(path)})
    score = unpack_result(reply, payload_types(settings.build_method())[1], job).scores["own"]
    assert score.details is None
    assert score.samples == 6
    assert score.calibration_error > 0
