"""`training.amp`: losses in half precision, state in full precision, unchanged bits where it is off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import potluck
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.mixed_precision import check_mixed_precision, is_bf16_emulated
from potluck.core.model import ClientModel
from potluck.core.training import Training
from potluck.experiment import parse_experiment
from potluck.experiment.differences import first_difference, result_settings
from potluck.federation.members import federate
from potluck.methods import METHODS
from support.tiny import StopAt

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "limit": 120},
    "partition": {"clients": 3},
    "schedule": {"rounds": 2},
    "engine": {"name": "serial"},
}


class OneWeight(ClientModel):
    """Scores are one weight times the input, and its negative."""

    feature_dim = 1

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2, bias=False)
        self.head.weight.data = torch.tensor([[weight], [-weight]])

    def features(self, x: Tensor) -> Tensor:
        return x


def client(amp: str, weight: float = 1.0, **training: Any) -> Client:
    x, y = torch.ones(2, 1), torch.tensor([0, 1])
    settings = Training(1, 2, lr=0.5, amp=amp, **training)  # type: ignore[arg-type]
    member = potluck.Member(OneWeight(weight), (x, y), (x, y))
    return federate([member], training=settings, num_classes=2).client(0)


def first_score(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A quarter of it: a gradient of 1, scaled by 2^16, would be more than fp16 holds."""
    scores: Tensor = model(x)
    return scores[0, 0].float() / 4


@pytest.mark.parametrize(("amp", "seen"), [("off", 1 + 2**-9 + 2**-12), ("fp16", 1 + 2**-9), ("bf16", 1.0)])
def test_losses_use_the_chosen_precision_and_weights_full_precision(amp: str, seen: float):
    """Of 1 + 2^-9 + 2^-12, eleven bits of fp16 keep 1 + 2^-9, eight bits of bf16 keep 1."""
    me = client(amp, 1 + 2**-9 + 2**-12)
    assert me.fit(first_score).loss == seen / 4
    assert me.model.head.weight.dtype == torch.float32
    assert me.model.head.weight[0, 0].item() == 1 + 2**-9 + 2**-12 - 0.5 / 4  # one step


def test_small_gradients_survive_fp16_because_losses_are_scaled():
    """2^-26 is nothing in fp16, whose smallest number is 2^-24; scaled by 2^16 it is there."""
    me = client("fp16", 0.0)

    def tiny_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return first_score(model, x, y) * 2**-24

    me.fit(tiny_loss)
    assert me.model.head.weight[0, 0].item() == -0.5 * 2**-26


def test_a_step_that_overflows_is_left_out_halves_the_scale_and_is_remembered():
    me = client("fp16", clip_norm=1.0)

    def huge_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return first_score(model, x, y) * 2.0**10  # times 2^16: more than fp16 holds

    me.fit(huge_loss)
    assert me.model.head.weight[0, 0].item() == 1.0
    again = client("fp16")
    again.restore(me.state())
    assert again._loss_scale().state()["scale"] == 2.0**15  # type: ignore[union-attr]
    assert "scale" not in str(client("off").state().layout)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_every_method_trains_in_half_precision_and_sends_full(amp: str, tmp_path: Path):
    """Answers in other numbers than the task's would be refused, and a round without answers is an error."""
    for method in METHODS:
        settings = {"method": {"name": method}, "training": {"epochs": 1, "amp": amp}, **SMALL}
        run = potluck.run(settings, out=tmp_path / method)
        assert not any(row.get("failures") for row in run.rounds), method


def test_half_precision_changes_results_resumes_exactly_and_goes_with_stacks(tmp_path: Path):
    def run(amp: str, out: str, **more: Any) -> list[dict[str, Any]]:
        settings = {"method": {"name": "moon"}, "training": {"epochs": 1, "amp": amp}, **SMALL}
        engine = {"name": "serial", "vectorize": more.pop("vectorize", "off")}
        result = potluck.run({**settings, "engine": engine}, out=tmp_path / out, **more)
        return [{**row, "seconds": 0} for row in result.rounds]

    uninterrupted = run("fp16", "whole")
    with pytest.raises(KeyboardInterrupt):
        run("fp16", "parts", callbacks=[StopAt(1)])
    assert run("fp16", "parts", resume=True) == uninterrupted
    assert run("bf16", "half") != run("off", "full")
    stacked = run("bf16", "stacked", vectorize="on")
    assert [row["loss"] for row in stacked] == pytest.approx(
        [row["loss"] for row in run("bf16", "b")], rel=0.05
    )


def test_settings_without_half_precision_are_unchanged():
    """Results on record were asked for when the setting did not exist."""
    defaults = parse_experiment({}).model_dump(mode="json")
    assert "training.amp" not in result_settings(defaults)
    assert (
        result_settings(parse_experiment({"training": {"amp": "bf16"}}).model_dump())["training.amp"]
        == "bf16"
    )
    before = {
        **defaults,
        "training": {key: value for key, value in defaults["training"].items() if key != "amp"},
    }
    assert first_difference(before, defaults) is None


def test_half_precision_that_cannot_be_is_one_sentence(tmp_path: Path):
    with pytest.raises(
        PotluckError, match=r"training\.amp = 'bf16' has no effect: models\.precision = 'float64'"
    ):
        potluck.run("fedgh", training={"amp": "bf16"}, models={"precision": "float64"}, out=tmp_path / "run")
    with pytest.raises(
        PotluckError, match=r"training\.amp = 'fp16' is not available on engine\.device = 'meta'"
    ):
        check_mixed_precision("fp16", torch.device("meta"))


@pytest.mark.parametrize(
    ("cpuinfo", "emulated"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512bw\n", True),
        ("flags\t\t: fpu avx512f avx512_bf16\n", False),
        ("flags\t\t: fpu amx_bf16\n", False),
        ("Features\t: fp asimd bf16\n", False),
        ("processor\t: 0\n", False),
    ],
)
def test_bf16_is_emulated_where_the_listed_features_lack_it(cpuinfo: str, emulated: bool) -> None:
    assert is_bf16_emulated(cpuinfo) is emulated
