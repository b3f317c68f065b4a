"""The HtFLlib comparison gives a fake clone the same work and alternates rounds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from benchmarks.results import stored_rows
from potluck.models import build_model

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "benchmarks" / "htfllib.py"
ALL = {"Local", "FedGH", "LG-FedAvg", "FedProto", "FML", "FedKD"}

MAIN = """
parser.add_argument("-lbs", "--batch_size", type=int, default=99)
parser.add_argument("-x", "--left_alone", type=float, default=0.5)
"""
NETWORKS = """
import torchvision

def make(args, index):
    return eval(args.models[index % len(args.models)])
"""
SERVER = """
import json, os
import numpy as np, torch
from flcore.trainmodel.models import make

class {name}:
    def __init__(self, args, times):
        self.args, self.tests = args, 0
        self.networks = [make(args, index) for index in range(args.num_clients)]

    def evaluate(self):
        self.tests += 1

    def train(self):
        for _ in range(self.args.global_rounds + 1):
            print("noise of its own")
            self.evaluate()
            self.write_down()

    def write_down(self):
        found = dict(vars(self.args), tests=self.tests, threads=torch.get_num_threads())
        found["widths"] = [one.layers[7].out_features for one in self.networks]
        for kind in ("train", "test"):
            found[kind] = [self.rows(kind, index) for index in range(self.args.num_clients)]
        with open(os.path.join(os.path.dirname(__file__), "{name}.json"), "w") as file:
            json.dump(found, file)

    def rows(self, kind, index):
        rows = np.load(f"../dataset/{{self.args.dataset}}/{{kind}}/{{index}}.npz", allow_pickle=True)["data"].tolist()
        assert rows["x"].dtype == np.float32 and rows["x"].shape[1:] == (3, 16, 16)
        return rows["y"].tolist()
"""
MODULES = {
    "serverlocal": "Local",
    "servergh": "FedGH",
    "serverlg": "LG_FedAvg",
    "serverproto": "FedProto",
    "serverfml": "FML",
    "serverkd": "FedKD",
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    system = tmp_path / "clone" / "system"
    (system / "flcore" / "servers").mkdir(parents=True)
    (system / "flcore" / "trainmodel").mkdir()
    (system / "main.py").write_text(MAIN)
    (system / "flcore" / "trainmodel" / "models.py").write_text(NETWORKS)
    for module, name in MODULES.items():
        (system / "flcore" / "servers" / f"{module}.py").write_text(SERVER.format(name=name))
    return system.parent


@pytest.fixture
def images(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (120, 3, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=pixels, y=np.arange(120) % 3)
    return f"npz:{tmp_path / 'images.npz'}"


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.htfllib", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ, timeout=200, check=False
    )


def test_every_method_gets_the_same_work_and_rounds_take_turns(
    clone: Path, images: str, tmp_path: Path
) -> None:
    table = tmp_path / "bench.csv"
    quick = ("--trials", 2, "--data", images, "--images", 0, "--clients", 3)
    process = run("--checkout", clone, *quick, "--store", table)
    assert process.returncode == 0, process.stderr
    assert "noise" not in process.stdout
    rows = stored_rows(table)
    ratios = [row for row in rows if row.goal == 2.5 and row.at_least]
    assert {row.what for row in ratios} == ALL
    assert len(rows) == 3 * len(ALL)
    for name in MODULES.values():
        results = json.loads((clone / "system/flcore/servers" / f"{name}.json").read_text())
        assert results["left_alone"] == 0.5  # its own default
        assert (results["batch_size"], results["local_epochs"], results["num_clients"]) == (10, 1, 3)
        assert (results["device"], results["threads"], results["feature_dim"]) == ("cpu", 2, 500)
        assert results["widths"] == [2000, 2000, 1000]  # cnn-1, cnn-2, cnn-3
        assert results["tests"] == 3  # one round warms up, two count; then it is stopped
        train, test = (np.concatenate(results[kind]) for kind in ("train", "test"))
        assert np.bincount(np.concatenate([train, test]).astype(int)).tolist() == [40, 40, 40]
        assert len(train) > 2 * len(test)  # 75 : 25 of each client


def test_unmeasurable_setting_is_one_sentence(clone: Path, tmp_path: Path) -> None:
    there = f"--checkout {clone}"
    cases = {
        f"--checkout {tmp_path}": "is no clone of HtFLlib (it has no system/main.py)",
        f"{there} --methods fedgh": "Unknown method of HtFLlib 'fedgh'. Did you mean 'FedGH'?",
        f"{there} --methods FedGH --store {tmp_path / 'x.csv'}": "leave --methods out",
        f"{there} --trials 0": "--trials 0 counts no round; set 1 or more.",
        f"{there} --data npz:nowhere": "need an existing .npz file",
        f"{there} --clients 0": "partition.clients",
    }
    for words, sentence in cases.items():
        process = run(*words.split())
        assert process.returncode == 2
        assert sentence in process.stderr
        assert process.stderr.count("\n") == 1


def test_missing_packages_of_a_clone_are_named(clone: Path, images: str) -> None:
    (clone / "system/flcore/trainmodel/models.py").write_text("import no_such_module")
    process = run("--checkout", clone, "--methods", "Local", "--data", images, "--images", 0, "--clients", 2)
    assert process.returncode == 2
    assert "No module named 'no_such_module'; install what is missing" in process.stderr


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("htfllib", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["htfllib"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cnn-1", "cnn-2", "cnn-5"])
def test_networks_equal_those_of_htfllib(name: str) -> None:
    network = build_model(name, (3, 32, 32), 10)
    reference = program().PaperCNN(name, (3, 32, 32), 10)
    reference.load_state_dict(dict(zip(reference.state_dict(), network.state_dict().values(), strict=True)))
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(reference(x), network(x))
