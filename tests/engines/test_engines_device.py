"""`--device`: models, data and server lie where configured, and nothing else changes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import potluck
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.engines import tuning
from potluck.experiment import parse_experiment, read_experiment
from potluck.federation.population import build_federation
from potluck.methods.fedgh import FedGH
from support.tiny import StopAt

HERE = Path(__file__).parent


def test_every_method_stays_on_the_device_and_gives_the_same_numbers(tmp_path: Path):
    """A make-believe accelerator refuses to mix with the CPU, as real ones do, and computes as the CPU does."""
    process = subprocess.run(
        [sys.executable, str(HERE / "accelerated_runs.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert json.loads(process.stdout.splitlines()[-1]) == {}


@pytest.mark.parametrize("device", ["cuda", "mps", "nonsense"])
def test_a_device_that_is_not_there_is_one_sentence(device: str, tmp_path: Path):
    with pytest.raises(PotluckError, match=rf"engine.device = '{device}' is not available here; use cpu"):
        potluck.run("fedgh", rounds=1, engine={"device": device}, out=tmp_path / "run")


class Own(ClientModel):
    """A network that the zoo does not know."""

    feature_dim = 64

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 64, 3, bias=False), nn.Linear(64, 10)

    def features(self, x: Tensor) -> Tensor:
        return self.conv(x).relu().mean((2, 3))


class Plain(Own):
    """Another one."""


def settings(engine: dict[str, object]) -> dict[str, object]:
    return {
        "data": {"name": "digits", "limit": 200},
        "models": {"names": ["small-cnn", "small-mlp"]},
        "partition": {"clients": 4},
        "training": {"epochs": 1},
        "schedule": {"rounds": 2},
        "engine": engine,
    }


def numbers(run: potluck.Run) -> list[dict[str, object]]:
    return [{**row, "seconds": 0} for row in run.rounds]


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether the convolutions of each architecture lie channels last when its clients train."""
    seen: dict[str, bool] = {}
    rest = Client.free_gradients

    def noting(me: Client) -> None:
        weights = [tensor for tensor in me.model.parameters() if tensor.dim() == 4 and tensor.shape[1] > 1]
        seen[me.info.architecture] = any(
            tensor.is_contiguous(memory_format=torch.channels_last) for tensor in weights
        )
        rest(me)

    monkeypatch.setattr(Client, "free_gradients", noting)
    return seen


def test_channels_last_is_kept_through_training_averages_and_resuming(
    tmp_path: Path, layout: dict[str, bool]
):
    engine = {"name": "serial", "channels_last": ["small-cnn"]}
    first = potluck.run(settings({"name": "serial", "channels_last": []}), out=tmp_path / "first")
    assert layout == {"small-cnn": False, "small-mlp": False}
    uninterrupted = potluck.run(settings(engine), out=tmp_path / "whole")
    assert layout == {"small-cnn": True, "small-mlp": False}
    with pytest.raises(KeyboardInterrupt):
        potluck.run(settings(engine), out=tmp_path / "halves", callbacks=[StopAt(1)])
    halves = potluck.run(settings(engine), out=tmp_path / "halves", resume=True)
    pool = potluck.run(settings({**engine, "name": "pool", "workers": 2}), out=tmp_path / "pool")
    built = potluck.run(settings({"name": "serial"}), out=tmp_path / "built")
    assert numbers(uninterrupted) == numbers(halves) == numbers(pool) == numbers(built)
    assert numbers(uninterrupted) != numbers(first)  # else nothing was tested


def recorded(run: Path) -> object:
    return read_experiment(run / "experiment.toml")["engine"]["channels_last"]


def test_known_layout_is_the_default_and_recorded_and_kept_on_resume(tmp_path: Path):
    first_run = potluck.run(settings({"name": "serial"}), out=tmp_path / "one")
    assert recorded(first_run.path) == ["small-cnn"]
    again = potluck.run(str(first_run.path / "experiment.toml"), out=tmp_path / "again")
    assert numbers(first_run) == numbers(again)
    stacked = potluck.run(settings({"name": "serial", "vectorize": "on"}), out=tmp_path / "stacked")
    assert recorded(stacked.path) == []  # a stack has its channels first


def test_the_measured_layout_is_on_record_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers = iter([True, False])
    monkeypatch.setattr(tuning, "_is_faster", lambda name, federation: next(answers))
    experiment = settings({"name": "serial", "channels_last": "auto"})
    del experiment["models"]
    models = [Own, Plain, "small-cnn"]
    potluck.run(experiment, models=models, out=tmp_path / "run")
    assert recorded(tmp_path / "run") == ["Own", "small-cnn"]  # the zoo is not measured: it knows
    again = potluck.run(experiment, models=models, out=tmp_path / "run", resume=True)
    assert again.was_finished  # a third answer would fail


def test_models_without_convolutions_keep_their_layout(tmp_path: Path):
    federation = build_federation(parse_experiment(settings({})), FedGH())
    assert "small-mlp" not in tuning.resolve_channels_last(("auto",), federation)
    assert tuning.resolve_channels_last(("all",), federation) == ("small-cnn", "small-mlp")


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ({"channels_last": "small-cn"}, "Unknown architecture in engine.channels_last 'small-cn'"),
        (
            {"channels_last": "all", "vectorize": "on"},
            "engine.channels_last is not supported with engine.vectorize = 'on'",
        ),
    ],
)
def test_a_layout_that_makes_no_sense_is_one_sentence(
    engine: dict[str, object], sentence: str, tmp_path: Path
):
    with pytest.raises(PotluckError, match=sentence):
        potluck.run(settings(engine), out=tmp_path / "run")
