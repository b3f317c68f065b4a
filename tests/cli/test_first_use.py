"""First use of the command: names, places and files as users type them."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import potluck as library
from support.synthetic_runs import make_run

QUICK = (
    "--rounds",
    "1",
    "--clients",
    "3",
    "--partition",
    "iid",
    "--set",
    "training.epochs=1",
    "--engine",
    "serial",
)


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """A folder as `potluck compare` leaves it: runs, and beside them tables and a report."""
    folder = tmp_path / "runs" / "compare"
    for method in ("standalone", "fedgh"):
        make_run(tmp_path / "made", method=method).rename(
            folder.mkdir(parents=True, exist_ok=True) or folder / f"{method}-seed0"
        )
    for name in ("comparison.csv", "comparison.md", "report.html"):
        (folder / name).write_text("")
    return folder


def test_the_version(potluck):
    code, out, _ = potluck("--version")
    assert (code, out) == (0, f"potluck {library.__version__}\n")
    assert library.__version__ == version("potluck")


@pytest.mark.parametrize("pattern", ["runs/compare/*", "runs/*", "runs"])
def test_report_plot_and_compare_skip_folders_without_run(
    potluck, compared: Path, tmp_path: Path, pattern: str
):
    places = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.glob(pattern))]
    for words in (["report", *places], ["plot", *places, "--out", "f.svg"], ["compare", *places]):
        code, out, err = potluck(*words)
        assert (code, err) == (0, ""), words
    assert "standalone" in out
    assert "fedgh" in out
    assert [run.method for run in library.read_runs("runs")] == ["fedgh", "standalone"]


def test_a_place_without_runs_is_named(potluck, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for command in ("report", "plot", "compare"):
        code, _, err = potluck(command, "empty")
        assert code == 2
        assert "There is no run in 'empty'" in err


def test_installed_command_finds_a_method_in_the_current_folder(tmp_path: Path):
    (tmp_path / "fedcos.py").write_text("from potluck.methods import FedGH\nclass FedCos(FedGH):\n    pass\n")
    # As a console script starts: the first entry of the path is the script's folder, not the current one.
    start = "import sys; sys.path = [p for p in sys.path if p]; from potluck.cli import main; main()"
    command = [sys.executable, "-P", "-c", start, "run", "fedcos:FedCos", *QUICK[:-1], "pool", "-q"]
    process = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "Run folder: runs/fedcos-digits-seed0" in process.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["FedGH"], "Unknown method 'FedGH'. Did you mean 'fedgh'?"),
        (["LG_FedAvg"], "Unknown method 'LG_FedAvg'. Did you mean 'lg-fedavg'?"),
        (["fedgh", "--set", "lr=0.1"], "Unknown setting 'lr'. Did you mean 'training.lr'?"),
        (["fedgh", "--set", "clients=3"], "Did you mean 'evaluate.clients' or 'partition.clients'?"),
        (
            ["fedgh", "--set", "data.split=90:20"],
            "Split '90:20' adds up to 110; write percents that add up to 100",
        ),
        (["fedgh", "--models", "small-mlp,small-cnn+32"], "Set models.feature_dim="),
        (["fedgh", "--data", "npz:from1.npz"], "start at 1, so that class 0 would be empty; subtract 1"),
        (
            ["fedgh", "--data", "npz:strings.npz"],
            "not such as 'a'; map them first: class_names, y = numpy.unique",
        ),
        (["fedgh", "--data", "npz:random.npz"], "'random.npz' is no .npz archive"),
        (["fedgh", "--data", "csv:head.csv"], "has a header line and no row; give it"),
        (["fedgh", "--models", "cnn-1"], "needs inputs of at least 16×16"),
    ],
)
def test_first_mistakes_get_one_sentence_that_helps(potluck, tmp_path: Path, words: list[str], says: str):
    x, y = np.random.default_rng(0).random((60, 6), dtype=np.float32), np.arange(60) % 3
    np.savez(tmp_path / "from1.npz", x=x, y=y + 1)
    np.savez(tmp_path / "strings.npz", x=x, y=np.array(["a", "b", "c"])[y])
    (tmp_path / "random.npz").write_bytes(np.random.default_rng(1).bytes(300))
    (tmp_path / "head.csv").write_text("a,b,label\n")
    code, out, err = potluck("run", *words, *QUICK)
    assert (code, out) == (2, "")
    assert says in err
    assert "unsafely" not in err
    assert err.count("\n") == 1


def test_the_remedy_that_is_named_works(potluck):
    assert (
        potluck(
            "run", "fedgh", "--models", "small-mlp,small-cnn+32", *QUICK, "--set", "models.feature_dim=32"
        )[0]
        == 0
    )


def test_one_augmentation_is_a_list_of_one(potluck, tmp_path: Path):
    assert potluck("run", "standalone", *QUICK, "--set", "data.augment=flip", "--out", "r")[0] == 0
    assert 'augment = [\n    "flip",\n]' in (tmp_path / "r" / "experiment.toml").read_text()


def net(inputs: int = 6, classes: int = 3) -> nn.Module:
    return library.split(nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, classes)), head="2")


X, Y = torch.rand(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
SMALL = {"clients": 2, "rounds": 1, "partition": "iid", "engine": "serial", "training": {"epochs": 1}}


@pytest.mark.parametrize(
    ("data", "model", "says"),
    [
        ((X, Y), net(5), r"cannot take a sample of shape \(6,\)"),
        (
            (X, Y),
            net(6, 2),
            "gives 2 class scores and the data have 3 classes; give its last layer 3 outputs",
        ),
        ((X, Y), net(6, 5), "gives 5 class scores and the data have 3 classes"),
        ((X, Y + 1), net(6, 4), "start at 1"),
        ((X.numpy(), np.array(["a", "b", "c"])[Y]), net(), "not such as 'a'"),
        ((X, ["a", "b", "c"] * 20), net(), "not such as 'a'"),
    ],
)
def test_own_parts_that_do_not_fit_are_named(tmp_path: Path, data, model: nn.Module, says: str):
    with pytest.raises(library.PotluckError, match=says):
        library.run("fedgh", data=data, models=[model], out=tmp_path / "r", **SMALL)
    assert not (tmp_path / "r").exists()


def test_own_clients_with_labels_that_are_no_numbers_are_named():
    with pytest.raises(library.PotluckError, match="y of whole numbers from 0, not torch.float32 and list"):
        library.Member(net(), (X, ["a", "b", "c"] * 20))


def test_a_run_with_own_objects_is_exported_from_python(potluck, tmp_path: Path):
    run = library.run("fedgh", data=(X, Y), models=[net], out=tmp_path / "own", **SMALL)
    code, _, err = potluck("export", "own")
    assert code == 2
    assert "run = potluck.run(..., data=..., models=..., out='own', resume=True)" in err
    place = library.export_client(run, 0, tmp_path / "model")
    model = library.load_model(place, models={"net": net})
    assert torch.equal(model(X[:5]), run.predict(0, X[:5]))
