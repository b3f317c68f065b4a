"""`--device`: models, data and server are where the experiment says, and nothing else changes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import potluck
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.engines import channels_last
from potluck.experiment import parse_experiment, read_experiment
from potluck.methods.fedgh import FedGH
from potluck.population import build_federation
from tiny import StopAt

HERE = Path(__file__).parent


def test_every_method_stays_on_the_device_and_gives_the_same_numbers(tmp_path: Path):
    """A make-believe accelerator refuses to mix with the CPU, as real ones do, and computes as the CPU does."""
    done = subprocess.run(
        [sys.executable, str(HERE / "accelerated_runs.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


@pytest.mark.parametrize("device", ["cuda", "mps", "nonsense"])
def test_a_device_that_is_not_there_is_one_sentence(device: str, tmp_path: Path):
    with pytest.raises(PotluckError, match=rf"engine.device = '{device}' is not available here; use cpu"):
        potluck.run("fedgh", rounds=1, engine={"device": device}, out=tmp_path / "run")


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
    rest = Client.rest

    def noting(me: Client) -> None:
        weights = [tensor for tensor in me.model.parameters() if tensor.dim() == 4 and tensor.shape[1] > 1]
        seen[me.info.architecture] = any(
            tensor.is_contiguous(memory_format=torch.channels_last) for tensor in weights
        )
        rest(me)

    monkeypatch.setattr(Client, "rest", noting)
    return seen


def test_channels_last_is_kept_through_training_averages_and_resuming(
    tmp_path: Path, layout: dict[str, bool]
):
    engine = {"name": "serial", "channels_last": ["small-cnn"]}
    whole = potluck.run(settings(engine), out=tmp_path / "whole")
    assert layout == {"small-cnn": True, "small-mlp": False}
    with pytest.raises(KeyboardInterrupt):
        potluck.run(settings(engine), out=tmp_path / "halves", callbacks=[StopAt(1)])
    halves = potluck.run(settings(engine), out=tmp_path / "halves", resume=True)
    pool = potluck.run(settings({**engine, "name": "pool", "workers": 2}), out=tmp_path / "pool")
    assert numbers(whole) == numbers(halves) == numbers(pool)


def test_the_measured_layout_is_on_record_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers = iter([True, False])
    monkeypatch.setattr(channels_last, "_is_faster", lambda name, federation: next(answers))
    asked = settings({"name": "serial", "channels_last": "auto"})
    potluck.run(asked, out=tmp_path / "run")
    written = read_experiment(tmp_path / "run" / "experiment.toml")
    assert written["engine"]["channels_last"] == ["small-cnn"]
    assert potluck.run(asked, out=tmp_path / "run", resume=True).was_finished  # a third answer would fail


def test_what_has_no_convolutions_is_never_laid_out_anew(tmp_path: Path):
    federation = build_federation(parse_experiment(settings({})), FedGH())
    assert "small-mlp" not in channels_last.chosen(("auto",), federation)
    assert channels_last.chosen(("all",), federation) == ("small-cnn", "small-mlp")


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ({"channels_last": "small-cn"}, "Unknown architecture in engine.channels_last 'small-cn'"),
        ({"channels_last": "all", "vectorize": "on"}, "does not go with engine.vectorize = 'on'"),
    ],
)
def test_a_layout_that_makes_no_sense_is_one_sentence(
    engine: dict[str, object], sentence: str, tmp_path: Path
):
    with pytest.raises(PotluckError, match=sentence):
        potluck.run(settings(engine), out=tmp_path / "run")
