"""A new client of a run: what it receives, what it keeps, what is exported, and who cannot be served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import potluck
from potluck.core.errors import PotluckError
from potluck.methods import METHODS
from potluck.runs.join import JOINED
from potluck.wire.score import score_outputs

TINY: dict[str, Any] = {
    "clients": 2, "rounds": 1, "epochs": 1, "data": {"name": "digits", "limit": 80, "public": 0.2},
    "engine": "serial",
}  # fmt: skip


def digits(rows: int = 120) -> Any:
    """The last rows of the digits, as a new client's own."""
    data = potluck.load_data("digits")
    return potluck.data.as_data((data.x[-rows:], data.y[-rows:]), class_names=data.class_names)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> potluck.Run:
    folder = tmp_path_factory.mktemp("join")
    return potluck.run(
        "fedproto", **(TINY | {"rounds": 2, "models": "small-mlp,small-wide"}), out=folder / "run"
    )


@pytest.mark.parametrize("mode", ["select", "ensemble"])
def test_exported_model_is_the_used_one_and_the_run_stays_as_it_was(
    finished: potluck.Run, tmp_path: Path, mode: Any
):
    files = {path: path.read_bytes() for path in finished.path.rglob("*") if path.is_file()}
    joined = potluck.join_run(
        finished, digits(), "small-mlp", epochs=4, safeguard=mode, out=tmp_path / "model", split="1:1:1"
    )
    assert (joined.train, joined.validation, joined.test, joined.epochs) == (40, 40, 40, 4)
    assert joined.accuracy is not None
    used, federated, alone = joined.accuracy_validation
    difference = joined.validation_gained - joined.validation_lost
    assert federated - alone == pytest.approx(difference / joined.validation)
    assert used in ((federated, alone) if mode == "select" else (used,))
    stored = json.loads((tmp_path / "model" / JOINED).read_text())
    assert stored == json.loads(json.dumps(joined.facts()))
    model, data = potluck.load_model(tmp_path / "model"), digits()
    rows = potluck.data.split_in_three(np.arange(120), "1:1:1", seed=0, client="newcomer")[2]
    batch = torch.as_tensor(rows)
    assert (
        score_outputs([(model(model.transform(data.x[batch])).detach(), data.y[batch])]).accuracy
        == joined.accuracy[0]
    )
    assert files == {path: path.read_bytes() for path in finished.path.rglob("*") if path.is_file()}


def test_standalone_model_of_a_newcomer_does_not_depend_on_the_run(finished: potluck.Run, tmp_path: Path):
    standalone = potluck.run("fedgh", **(TINY | {"models": "small-mlp,small-wide"}), out=tmp_path / "run")
    joined = [
        potluck.join_run(run, digits(), "small-mlp", epochs=2, out=tmp_path / "model")
        for run in (finished, standalone)
    ]
    assert joined[0].accuracy_validation[2] == joined[1].accuracy_validation[2]
    assert joined[0].accuracy_validation[1] != joined[1].accuracy_validation[1]


def test_message_is_that_of_the_last_state(finished: potluck.Run, tmp_path: Path):
    """FedProto sends a row of 64 features for each known class, and the ids of these classes where some are unknown."""
    joined = potluck.join_run(finished, digits(), "small-mlp", epochs=1, out=tmp_path / "model")
    assert joined.round == 2
    assert joined.message_bytes >= 10 * 64 * 4


QUICK = ("fedgh", "fedhe", "pfedafm", "fedl2g-l", "fedin", "fedmd", "fedcgs")


@pytest.mark.parametrize(
    "method",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in METHODS
        if name != "standalone"
    ],
)
def test_newcomer_joins_every_method_with_a_message(method: str, tmp_path: Path):
    models = {"models": ",".join(NESTED_FAMILIES[method])} if method in NESTED_FAMILIES else {}
    run = potluck.run(method, **(TINY | models), out=tmp_path / "run")
    model = next(iter(run.summary["client_architectures"]))
    joined = potluck.join_run(run, digits(60), model, epochs=1, out=tmp_path / "model")
    assert joined.message_bytes > 0
    assert (tmp_path / "model" / "model.safetensors").exists()


NESTED_FAMILIES = {
    "fedin": ("mini-resnet-1", "mini-resnet-2"),
    "inclusivefl": ("mini-resnet-1", "mini-resnet-2"),
    "heterofl": ("slim-cnn@1", "slim-cnn@0.5"),
    "fedrolex": ("slim-cnn@1", "slim-cnn@0.5"),
}


@pytest.mark.parametrize(
    ("method", "models", "model", "sentence"),
    [
        ("standalone", "small-mlp", "small-mlp", "Standalone sends nothing"),
        ("fedavg", "small-mlp", "small-cnn", "has nothing for a new client with model 'small-cnn'.*choose one of small-mlp"),
        ("fedcgs", "small-mlp", "small-cnn", "has nothing for a new client with model 'small-cnn'"),
        ("fedproto", "small-mlp", "small-mlp+32", "FedProto needs equal feature size: client 2 'small-mlp.32'"),
    ],
)  # fmt: skip
def test_methods_that_cannot_serve_a_newcomer_say_why(
    method: str, models: str, model: str, sentence: str, tmp_path: Path
):
    run = potluck.run(method, **(TINY | {"models": models}), out=tmp_path / "run")
    with pytest.raises(PotluckError, match=sentence):
        potluck.join_run(run, digits(60), model)
    assert not (run.path / "join").exists()


def test_new_kind_of_model_joins_where_messages_fit_every_model(finished: potluck.Run, tmp_path: Path):
    joined = potluck.join_run(finished, digits(60), "small-cnn", epochs=1, out=tmp_path / "model")
    assert joined.architecture == "small-cnn"
    assert potluck.load_model(tmp_path / "model")(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_table_is_read_with_the_columns_of_the_run(tmp_path: Path):
    lines = ["age,ward,outcome"]
    lines += [f"{20 + row},{'AB'[row % 2]},{('ill', 'well')[row % 2]}" for row in range(60)]
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    run = potluck.run(
        "fedavg", data={"name": f"csv:{tmp_path / 'all.csv'}", "label": "outcome"}, clients=2, rounds=1,
        epochs=1, engine="serial", models="mlp-2", out=tmp_path / "run",
    )  # fmt: skip
    # Only ward B: a table read by itself would have one column less, and other means.
    new = ["outcome,note,ward,age", *(f"well,x,B,{40 + row}" for row in range(20))]
    (tmp_path / "new.csv").write_text("\n".join(new) + "\n")
    joined = potluck.join_run(run, f"csv:{tmp_path / 'new.csv'}", "mlp-2", out=tmp_path / "model")
    assert joined.accuracy_validation[2] == 1.0
    (tmp_path / "new.csv").write_text("outcome,ward,age\nsick,B,40\n")
    with pytest.raises(PotluckError, match="has the class 'sick', which the run does not have"):
        potluck.join_run(run, f"csv:{tmp_path / 'new.csv'}", "mlp-2")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"split": "8:2"}, "gives 48 training and 0 validation samples"),
        ({"name": "client-1"}, "'client-1' is a client of the run"),
        ({"name": "a/b"}, "--name 'a/b' is not valid"),
        ({"epochs": 0}, "--epochs 0 is not valid"),
        ({"safeguard": "off"}, "use select or ensemble"),
        ({"model": "no-model"}, "Unknown model 'no-model'"),
    ],
)
def test_bad_input_is_one_sentence(finished: potluck.Run, settings: dict[str, Any], sentence: str):
    with pytest.raises(PotluckError, match=sentence):
        potluck.join_run(finished, digits(60), **({"model": "small-mlp"} | settings))


def test_rows_of_another_form_or_class_are_refused(finished: potluck.Run):
    with pytest.raises(PotluckError, match=r"Rows of the new client are \(3,\) of torch.float32"):
        potluck.join_run(
            finished, potluck.data.as_data((torch.zeros(6, 3), torch.arange(6) % 2)), "small-mlp"
        )
    wrong_data = potluck.data.as_data((digits(60).x, torch.full((60,), 11)))
    with pytest.raises(PotluckError, match="have the label 11, and the run has 10 classes"):
        potluck.join_run(finished, wrong_data, "small-mlp")


def test_command(potluck: Any, finished: Any, tmp_path: Path):
    data = digits(90)
    np.savez(tmp_path / "new.npz", x=data.x.numpy(), y=data.y.numpy())
    words = [
        "join",
        finished.path,
        "--data",
        f"npz:{tmp_path / 'new.npz'}",
        "--model",
        "small-wide",
        "--epochs",
        "2",
    ]
    code, out, err = potluck(*map(str, words), "--out", str(tmp_path / "model"))
    assert (code, err) == (0, "")
    assert "newcomer: small-wide, 54 training samples, 2 epochs" in out
    assert "It uses" in out
    code, _, err = potluck("join", str(tmp_path), "--data", "digits", "--model", "small-mlp")
    assert (code, "is no run folder" in err) == (2, True)
