"""Nodes with data and models of their own: what the server learns, what a message may do, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from own_nodes import experiment, introductions, three_nodes, write_node
from potluck.core.errors import PotluckError
from potluck.core.job import Job
from potluck.core.method import payload_types
from potluck.core.payload import Nothing
from potluck.core.tree import Flat
from potluck.experiment import parse_experiment
from potluck.methods import method_class
from potluck.nodes import node as node_side
from potluck.nodes.check import check_node
from potluck.nodes.federation import node_federation, server_federation
from potluck.nodes.file import read_node
from potluck.nodes.node import answer
from potluck.nodes.packing import Order, pack_job, unpack_result


def test_the_server_knows_names_counts_and_shapes_only(tmp_path: Path) -> None:
    (path, *_) = three_nodes(tmp_path)
    (one,) = introductions(experiment(), [path])
    told = json.loads(json.dumps(one.flat().layout))["introduction"]
    assert set(told) == {
        "name", "samples", "architecture", "device", "input_shape", "feature_dim", "tensors", "parameters", "head",
        "stage_shapes", "width_rate",
    }  # fmt: skip
    assert (told["name"], told["samples"], told["input_shape"]) == ("node-0", 18, [4])
    assert one.flat().tensors == {}


def test_first_weights_are_asked_for_only_where_the_server_uses_them(tmp_path: Path) -> None:
    paths = three_nodes(tmp_path)
    asked: list[int] = []

    def weights(client: int) -> dict[str, torch.Tensor]:
        asked.append(client)
        return node_federation(alike, read_node(paths[0])).task.architectures["mlp-1+6"].initial

    one = experiment("fedgh")
    server_federation(one, method_class("fedgh")(), introductions(one, paths), weights)
    assert asked == []
    alike = experiment("fedavg")
    people = introductions(alike, paths[:1])
    task = server_federation(alike, method_class("fedavg")(), people, weights).task
    assert asked == [0]
    assert all(torch.isfinite(tensor).all() for tensor in task.architectures["mlp-1+6"].initial.values())


def test_two_models_of_one_name_and_different_shapes_are_two_architectures(tmp_path: Path) -> None:
    one = experiment()
    (first, *_) = introductions(one, [write_node(tmp_path / "a", "a", "{module}:Wards", 1)])
    (second, *_) = introductions(one, [write_node(tmp_path / "b", "b", "{module}:Wards", 2)])
    object.__setattr__(second, "architecture", first.architecture)
    task = server_federation(one, method_class("fedgh")(), [first, second], lambda client: {}).task
    assert [info.architecture for info in task.clients] == ["of_a:Wards", "of_a:Wards-2"]


def test_a_repeated_job_gives_the_stored_answer_and_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_node(tmp_path / "n", "solo", "mlp-1+6", 3)
    order = Order(experiment("standalone").model_dump_json(exclude_none=True), "ab12")
    message = order.on(pack_job(Job(1, "train", 0, 0, 1, 2, Nothing(), ("own",))))

    first = answer(message, {"node-file": str(path)})
    monkeypatch.setattr(node_side.Node, "_do", lambda *_: pytest.fail("trained twice"))
    again = answer(message, {"node-file": str(path)})

    assert again.layout == first.layout
    assert first.layout["answer"]["trained_samples"] == 18
    assert (tmp_path / "n" / "potluck-state" / "ab12" / "state-1.safetensors").exists()


def test_a_message_of_the_wrong_type_is_refused(tmp_path: Path) -> None:
    path = write_node(tmp_path / "n", "strict", "mlp-1+6", 3)
    one = experiment("fedgh")
    order = Order(one.model_dump_json(exclude_none=True), "ab12")
    job = Job(1, "train", 0, 0, 1, 2, Nothing())
    flat = answer(order.on(pack_job(job)), {"node-file": str(path)})
    result = unpack_result(flat, job, payload_types(one.build_method())[1])
    assert result.kind == "invalid"
    assert "lacks the tensor" in result.reason


@pytest.mark.parametrize("run", ["../../etc", "run/one", "Ü", "a" * 33])
def test_a_run_id_cannot_name_another_folder(tmp_path: Path, run: str) -> None:
    path = write_node(tmp_path / "n", "careful", "mlp-1+6", 3)
    order = Order(experiment().model_dump_json(exclude_none=True), run)
    flat = answer(order.on(Flat({}, {"ask": "introduction"})), {"node-file": str(path)})
    assert "is not one of Potluck's" in flat.layout["refusal"]


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
    one = experiment(engine={"name": "flower", "nodes": 1, "classes": 2})
    with pytest.raises(PotluckError, match="Node 'beyond' has label 2 but engine.classes = 2"):
        node_federation(one, read_node(path))
