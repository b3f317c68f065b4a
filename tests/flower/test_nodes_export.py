"""A node exports its own trained model after a run: from its own disk, with all that a prediction needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import potluck as library
from potluck.core.errors import PotluckError
from potluck.core.payload import EmptyPayload
from potluck.flower.node.config import read_node
from potluck.flower.node.export import export_node
from potluck.flower.node.federation import node_federation
from potluck.flower.node.host import NodeHost
from potluck.flower.node.registration import Assignment
from potluck.wire import Message, load_state, pack_job
from potluck.wire.jobs import Job
from support.own_nodes import experiment, write_node

OWN_NAMES = {"one.weight", "one.bias", "two.weight", "two.bias", "head.weight", "head.bias"}


def train_node(path: Path, run: str, rounds: int = 2, **more: object) -> None:
    """Do the training jobs of a run as the server would ask for them."""
    settings = experiment("standalone", data={"class_names": ["well", "ill", "worse"]}, **more)
    order = Assignment(settings.model_dump_json(exclude_none=True), run)
    for number in range(rounds):
        job = Job(
            number + 1,
            "train",
            0,
            number,
            round=number + 1,
            rounds=rounds,
            message=EmptyPayload(),
            tests=("own",),
        )
        reply = NodeHost().handle_message(order.attach_to(pack_job(job)), {"node-file": str(path)})
        assert "answer" in reply.facts, reply.facts


def test_a_node_exports_the_model_that_it_trained(tmp_path: Path):
    path = write_node(tmp_path / "n", "solo", "{module}:Wards", 3)
    train_node(path, "ab12")
    place = export_node(path, tmp_path / "model")
    description = json.loads((place / "model.json").read_text())
    assert (description["client"], description["run"], description["jobs"]) == ("solo", "ab12", 2)
    assert description["class_names"] == ["well", "ill", "worse"]

    file = read_node(path)
    settings = experiment("standalone", data={"class_names": ["well", "ill", "worse"]})
    me = node_federation(settings, file).client(0)
    untrained = {name: tensor.clone() for name, tensor in me.model.state_dict().items()}
    me.restore(load_state(path.parent / "potluck-state" / "ab12" / "state-2.safetensors"))
    model = library.load_model(place, models={"of_solo:Wards": file.model_source()})
    x, _ = me.test.take(slice(None))
    with torch.no_grad():
        assert torch.equal(model(x), me.model.eval()(x))
    weights = model.module.state_dict()
    assert set(weights) == OWN_NAMES
    assert not torch.equal(weights["one.weight"], untrained["one.weight"])
    assert model.predict(x)[0].class_name in ("well", "ill", "worse")


def test_a_nodes_own_network_is_loaded_by_its_class_and_the_hint_works(potluck, tmp_path: Path):
    path = write_node(tmp_path / "n", "solo", "{module}:Wards", 3)
    train_node(path, "ab12")
    code, out, _ = potluck("node", "export", str(path), "--out", "model")
    assert code == 0
    hint = f"potluck predict {tmp_path / 'model'} FILE --network of_solo:Wards"
    assert out.splitlines()[1] == f"Predict with, in {path.parent}: {hint}"
    factory = read_node(path).model_source()
    by_class = library.load_model("model", models={"Wards": factory})
    by_name = library.load_model("model", models={"of_solo:Wards": factory, "Other": dict})
    only_one = library.load_model("model", models={"mine": factory})
    x = torch.ones(2, 4)
    assert torch.equal(by_class(x), by_name(x))
    assert torch.equal(by_class(x), only_one(x))
    with pytest.raises(PotluckError, match=r"models=\{'Wards': its factory\}"):
        library.load_model("model", models={"One": factory, "Other": factory})
    np.save("rows.npy", np.ones((1, 4), np.float32))
    words = hint.replace("FILE", "rows.npy").split()[1:]
    code, out, _ = potluck(*words)
    assert code == 0
    assert by_class.predict(x[:1])[0].class_name in out


def test_the_hint_of_a_network_of_the_zoo_needs_no_code(potluck, tmp_path: Path):
    path = write_node(tmp_path / "n", "solo", "mlp-1+6", 3)
    train_node(path, "ab12")
    code, out, _ = potluck("node", "export", str(path), "--out", "model")
    assert (code, out.splitlines()[1]) == (0, "Predict with: potluck predict model FILE")


def test_the_latest_run_is_exported_unless_one_is_named(potluck, tmp_path: Path):
    path = write_node(tmp_path / "n", "solo", "mlp-1+6", 3)
    code, _, err = potluck("node", "export", str(path))
    assert code == 2
    assert "Node 'solo' has no trained model" in err
    train_node(path, "ab12")
    train_node(path, "cd34", rounds=1)
    for words, run in (((), "cd34"), (("--run", "ab"), "ab12")):
        code, out, _ = potluck("node", "export", str(path), "--out", f"model-{run}", *words)
        assert (code, out.splitlines()[0]) == (0, f"Model: model-{run}")
        assert json.loads(Path(f"model-{run}", "model.json").read_text())["run"] == run
    code, _, err = potluck("node", "export", str(path), "--run", "ef")
    assert code == 2
    assert "--run 'ef' names 0 runs of node 'solo'; it trained in ab12, cd34." in err


def test_a_node_with_a_safeguard_exports_what_it_chose(tmp_path: Path):
    path = write_node(tmp_path / "n", "solo", "mlp-1+6", 3)
    path.write_text(path.read_text().replace('split = "75:25"', 'split = "50:25:25"'))
    train_node(path, "ab12", safeguard={"mode": "ensemble"})
    description = json.loads((export_node(path, tmp_path / "model") / "model.json").read_text())
    assert 0 <= description["federated_weight"] <= 1


def test_registration_alone_leaves_nothing_to_export(tmp_path: Path):
    path = write_node(tmp_path / "n", "solo", "mlp-1+6", 3)
    order = Assignment(experiment("standalone").model_dump_json(exclude_none=True), "ab12")
    reply = NodeHost().handle_message(
        order.attach_to(Message({"ask": "registration"})), {"node-file": str(path)}
    )
    assert "registration" in reply.facts
    with pytest.raises(PotluckError, match="let it take part in a run first"):
        export_node(path, tmp_path / "model")
