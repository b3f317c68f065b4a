"""`potluck push` sends models, card and results of a finished run to a Hub, here one on the loopback interface."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import potluck as library
from potluck.runs.restore import restore_run
from runs.test_runs_predict import Net, write_images
from support.fake_hub import TOKEN, FakeHub, fake_hub

RUN = ["run", "fedgh", "--clients", "3", "--rounds", "1", "--engine", "serial", "--set", "data.limit=120"]
MODEL_FILES = {f"clients/client-{i}/{name}" for i in range(3) for name in ("model.safetensors", "model.json")}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    library_constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(
        library_constants, "HF_HUB_DISABLE_XET", True, raising=False
    )  # LFS, which the fake speaks
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    with fake_hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield served


def test_a_run_arrives_with_models_card_and_results(potluck, hub: FakeHub, tmp_path: Path):
    assert potluck(*RUN, "--out", "run")[0] == 0
    code, out, err = potluck("push", "run", "ward/models")
    assert (code, out) == (0, f"Pushed: {hub.address}/ward/models\n"), err
    assert hub.private == {"ward/models": True}  # unless --public
    files = hub.files["ward/models"]
    assert set(files) == {"README.md", "results.csv", *MODEL_FILES}

    for path, content in files.items():
        (tmp_path / "copy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / path).write_bytes(content)
    restored, x = restore_run(Path("run")), torch.rand(4, 1, 8, 8)
    for client in range(3):
        model = library.load_model(tmp_path / "copy" / "clients" / f"client-{client}")
        with torch.no_grad():
            assert torch.equal(model(x), restored.predictor(client)(x))
    (row,) = csv.DictReader(files["results.csv"].decode().splitlines())
    summary = json.loads(Path("run", "summary.json").read_text())
    assert float(row["accuracy"]) == pytest.approx(summary["final_accuracy"])
    card = files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: potluck\npipeline_tag: image-classification\ntags:\n")
    for result in library.read_run("run").client_results:
        cells = f"[{result.name}](clients/{result.name}) | {result.architecture} | {result.train_samples} "
        assert cells in card
        assert f"| {100 * result.accuracy:.2f} |" in card
    assert str(tmp_path) not in card  # no paths of this machine
    assert not any("checkpoint" in request for request in hub.requests)


def test_some_clients_are_pushed_to_a_repository_that_exists(potluck, hub: FakeHub):
    assert potluck(*RUN, "--out", "run")[0] == 0
    assert potluck("push", "run", "ward/models", "--client", "1", "--public")[0] == 0
    assert potluck("push", "run", "ward/models", "--client", "2")[0] == 0
    assert hub.private == {"ward/models": False}
    assert {path.split("/")[1] for path in hub.files["ward/models"] if "/" in path} == {
        "client-1",
        "client-2",
    }
    code, _, err = potluck("push", "run", "ward/models", "--client", "3")
    assert code == 2
    assert "--client 3 is not in 'run'; it has clients 0 to 2" in err


def test_failed_push_is_one_sentence(potluck, hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    assert potluck(*RUN, "--out", "run")[0] == 0

    def refusal(*words: str) -> str:
        code, _, err = potluck("push", *words)
        assert (code, len(err.strip().splitlines())) == (2, 1), err
        return err

    assert "REPO 'models' is not a Hub repository; write OWNER/NAME" in refusal("run", "models")
    Path("run", "summary.json").rename("summary.json")
    assert "has not finished; finish it first: potluck resume run" in refusal("run", "ward/models")
    Path("summary.json").rename("run/summary.json")
    assert hub.requests == []

    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    message = refusal("run", "ward/models")
    assert "401" in message
    assert "check the network, the token (HF_TOKEN, or: hf auth login)" in message
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where no service listens
    assert "The Hub http://127.0.0.1:9 did not take 'ward/models'" in refusal("run", "ward/models")
    assert hub.files == {}


def test_without_the_library_the_remedy_is_named(potluck, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    code, _, err = potluck("push", "run", "ward/models")
    assert code == 2
    assert "run: pip install 'potluck[hub]'" in err


def test_the_card_of_own_networks_names_their_classes(potluck, hub: FakeHub, tmp_path: Path):
    write_images(Path("pets"), 20)
    Path("pushed_net.py").write_text("from runs.test_runs_predict import Net\n")
    save_file(Net().state_dict(), "weights.safetensors")
    assert (
        potluck(
            *RUN[:-2],
            "--partition",
            "iid",
            "--data",
            "folder:pets",
            "--models",
            "file:weights.safetensors@pushed_net:Net",
            "--out",
            "run",
        )[0]
        == 0
    )
    assert potluck("push", "run", "ward/pets")[0] == 0
    card = hub.files["ward/pets"]["README.md"].decode()
    assert "Classes: cat, dog." in card
    assert 'potluck.load_model(f"{place}/clients/client-0", models={"Net": Net})' in card
