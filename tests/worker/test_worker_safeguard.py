"""The safeguard: what it chooses, that its standalone models are those of `standalone`, and that nothing else changes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import potluck
from potluck.core.errors import PotluckError
from potluck.core.payload import EmptyPayload, PayloadError
from potluck.loop.callbacks import Callback, End
from potluck.runs.restore import restore_run
from potluck.wire import Message, pack_result, unpack_result
from potluck.wire.jobs import Answer
from potluck.wire.score import Comparison, Score, score_outputs
from potluck.worker.safeguard import Safeguard, choose_weight, combine, mcnemar, mix, mixture_weight

TINY: dict[str, Any] = {
    "data": {"name": "digits", "limit": 240, "split": "2:1:3"},
    "clients": 4,
    "rounds": 2,
    "epochs": 1,
    "models": "small-mlp,small-wide",
    "engine": "serial",
}


class States(Callback):
    """Keep every client's last state."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def on_end(self, end: End) -> None:
        self.states = [end.fetch(index) for index in range(4)]


def run(out: Path, method: str = "fedproto", **settings: Any) -> tuple[potluck.Run, list[dict[str, Any]]]:
    states = States()
    finished = potluck.run(method, out=out, callbacks=[states], **(TINY | settings))
    return finished, states.states


def final_rows(finished: potluck.Run) -> list[dict[str, Any]]:
    return [row for row in finished.clients if row["final"]]


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def scores_for(labels: list[int], right: list[bool], *, sure: float = 4.0) -> Tensor:
    """Class scores of two classes that are right where `right` says so."""
    rows = [label if ok else 1 - label for label, ok in zip(labels, right, strict=True)]
    return sure * torch.eye(2)[rows]


# -- the choice ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gained", "lost", "chance"), [(0, 0, 1.0), (5, 0, 1 / 32), (3, 1, 5 / 16), (1, 3, 15 / 16)]
)
def test_mcnemar_counts_the_tail_of_a_fair_coin(gained: int, lost: int, chance: float):
    assert mcnemar(gained, lost) == chance


@pytest.mark.parametrize(("gained", "weight"), [(4, 0.0), (5, 1.0)])
def test_select_needs_five_gains_without_a_loss_at_the_default_level(gained: int, weight: float):
    labels = [0, 1] * 5
    federated = scores_for(labels, [True] * 10)
    alone = scores_for(labels, [number >= gained for number in range(10)])
    assert choose_weight(Safeguard("select"), federated, alone, torch.tensor(labels)) == weight


def test_mixture_weight_is_the_share_of_samples_that_the_federated_model_explains():
    labels = [0, 1, 0, 1]
    federated = scores_for(labels, [True] * 4, sure=1e3)
    alone = scores_for(labels, [False] * 4, sure=1e3)
    assert mixture_weight(federated, alone, torch.tensor(labels), 0.0) == pytest.approx(1.0)
    assert mixture_weight(federated, alone, torch.tensor(labels), 4.0) == pytest.approx((4 + 2) / (4 + 4))
    assert mixture_weight(alone, federated, torch.tensor(labels), 4.0) == pytest.approx(2 / 8)
    assert mixture_weight(federated, federated, torch.tensor(labels), 4.0) == pytest.approx(0.5)


def test_mixture_weight_is_the_maximum_of_the_density_for_many_nearly_equal_models():
    """Iterations that stop early stay near one half here, where the maximum is far from it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (4000,), generator=generator)
    alone = torch.randn(4000, 2, generator=generator)
    federated = alone.clone()
    federated[torch.arange(4000), labels] += 0.05
    weight = mixture_weight(federated, alone, labels, 10.0)
    first, second = (scores.softmax(1)[torch.arange(4000), labels].double() for scores in (federated, alone))

    def density(share: float) -> float:
        return float((share * first + (1 - share) * second).log().sum()) + 5 * math.log(share * (1 - share))

    assert weight > 0.9
    assert density(weight) >= max(density(weight - 1e-4), density(weight + 1e-4))


def test_ensemble_that_makes_more_errors_than_alone_is_not_used():
    labels = [0, 1, 0]
    federated = scores_for(labels, [False, False, True], sure=9.0)
    alone = scores_for(labels, [True] * 3, sure=1.0)
    assert choose_weight(Safeguard("ensemble", prior=10.0), federated, alone, torch.tensor(labels)) == 0.0


def test_mix_averages_probabilities_and_replaces_nan():
    federated = torch.tensor([[2.0, 0.0], [float("nan"), 0.0], [float("-inf"), 0.0]])
    alone = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    expected = 0.25 * federated.softmax(1) + 0.75 * alone.softmax(1)
    expected[1] = alone[1].softmax(0)
    assert torch.allclose(mix(federated, alone, 0.25).exp(), expected)
    assert torch.equal(combine(federated, alone, 1.0)[1], alone[1])
    assert torch.equal(combine(federated, alone, 0.0), alone)


# -- runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"engine": {"name": "pool", "workers": 2}},
        {"engine": {"name": "serial", "memory": 1e-6}},
        {"schedule": {"rounds": 2, "buffer": 1, "concurrency": 2}},
        {"training": {"epochs": 1, "keep_optimizer": True, "momentum": 0.5}},
    ],
)
def test_standalone_models_are_those_of_standalone_and_federated_ones_do_not_change(
    tmp_path: Path, settings: dict[str, Any]
):
    base = {name: value for name, value in TINY.items() if name not in ("rounds", "engine", "epochs")}
    plain = {"rounds": 2, "epochs": 1, "engine": "serial", **settings}
    if "schedule" in settings:
        del plain["rounds"]
    if "training" in settings:
        del plain["epochs"]
    states: dict[str, list[dict[str, Any]]] = {}
    for name, method, more in (
        ("alone", "standalone", {}),
        ("off", "fedproto", {}),
        ("on", "fedproto", {"safeguard": "select"}),
    ):
        keeper = States()
        potluck.run(method, out=tmp_path / name, callbacks=[keeper], **base, **plain, **more)
        states[name] = keeper.states
    for alone, off, on in zip(states["alone"], states["off"], states["on"], strict=True):
        assert equal(on["standalone"]["model"], alone["model"])
        assert equal(on["model"], off["model"])
        assert "standalone" not in off
    assert any(not equal(on["model"], on["standalone"]["model"]) for on in states["on"])


def test_vectorized_engine_trains_standalone_models_in_stacks(tmp_path: Path):
    settings = {"models": "small-mlp", "vectorize": "on"}
    alone = run(tmp_path / "alone", "standalone", **settings)[1]
    on = run(tmp_path / "on", safeguard="ensemble", **settings)[1]
    for observed, reference in zip(on, alone, strict=True):
        for name, tensor in observed["standalone"]["model"].items():
            assert torch.allclose(tensor, reference["model"][name], atol=1e-6)


def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path):
    uninterrupted, states = run(tmp_path / "whole", safeguard="ensemble")
    run(tmp_path / "parts", safeguard="ensemble", rounds=1)
    parts, resumed = run(tmp_path / "parts", safeguard="ensemble", resume=True)
    assert final_rows(parts) == final_rows(uninterrupted)
    assert all(
        equal(a["standalone"]["model"], b["standalone"]["model"])
        for a, b in zip(states, resumed, strict=True)
    )


def test_records_have_the_choice_and_its_cost(tmp_path: Path):
    finished, _ = run(tmp_path / "run", safeguard={"mode": "select", "level": 0.6})
    plain, _ = run(tmp_path / "plain")
    alone, _ = run(tmp_path / "alone", "standalone")
    rows = final_rows(finished)
    for row, off, standalone_row in zip(rows, final_rows(plain), final_rows(alone), strict=True):
        assert row["accuracy_federated"] == off["accuracy"]
        assert row["accuracy_alone"] == standalone_row["accuracy"]
        chosen = row["accuracy_federated"] if row["federated_weight"] == 1 else row["accuracy_alone"]
        assert row["accuracy"] == chosen
        assert row["gained"] - row["lost"] == round(
            (row["accuracy"] - row["accuracy_alone"]) * row["samples"]
        )
        federated = row["accuracy_validation_federated"] - row["accuracy_validation_alone"]
        evidence = row["validation_gained"], row["validation_lost"]
        assert evidence[0] - evidence[1] == round(federated * row["validation_samples"])
        assert row["federated_weight"] == float(mcnemar(*evidence) <= 0.6)
        used = "federated" if row["federated_weight"] else "alone"
        assert row["accuracy_validation"] == row[f"accuracy_validation_{used}"]
    facts = finished.summary["safeguard"]
    assert facts["chose_federated"] == sum(row["federated_weight"] for row in rows) / 4
    assert facts["flops_per_client_round"] == alone.summary["flops_per_client_round"]
    assert finished.summary["flops_per_client_round"] == pytest.approx(
        plain.summary["flops_per_client_round"] + facts["flops_per_client_round"]
    )
    assert finished.rounds[-1]["notes"]["alone_accuracy"] == pytest.approx(facts["accuracy_alone"])
    assert finished.rounds[-1]["trained_samples"] == 2 * plain.rounds[-1]["trained_samples"]


def test_client_without_validation_samples_stays_alone(tmp_path: Path):
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    model = potluck.split(
        torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)), head="2"
    )
    rows = {"train": (x[:20], y[:20]), "test": (x[20:40], y[20:40])}
    members = [
        potluck.Member(model, **rows, name="with", validation=(x[40:], y[40:])),
        potluck.Member(model, **rows, name="without"),
    ]
    federation = potluck.federate(members, num_classes=3)
    finished = potluck.run(
        "fedavg", federation=federation, out=tmp_path / "run", rounds=1, safeguard="ensemble"
    )
    weights = {row["name"]: row["federated_weight"] for row in final_rows(finished)}
    assert weights["without"] == 0.0
    assert weights["with"] > 0


@pytest.mark.parametrize("mode", ["select", "ensemble"])
def test_export_holds_what_was_chosen(tmp_path: Path, mode: str):
    level = {"level": 0.99} if mode == "select" else {}
    finished, _ = run(tmp_path / "run", safeguard={"mode": mode, **level})
    restored = restore_run(finished.path)
    for row in final_rows(finished):
        place = potluck.export_client(finished.path, row["client"], tmp_path / f"model-{row['client']}")
        samples = restored.plan.federation.members[row["client"]].test
        batches = potluck.core.samples.outputs(
            potluck.load_model(place), samples, restored.plan.federation.task
        )
        assert score_outputs(batches).accuracy == row["accuracy"]
        stored = json.loads((place / "model.json").read_text())
        assert stored["federated_weight"] == pytest.approx(row["federated_weight"])


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("standalone", {"safeguard": "select"}, "clients of Standalone train alone anyway"),
        (
            "fedgh",
            {"safeguard": "select", "data": {"limit": 240}},
            "needs validation samples, and no client has any",
        ),
        ("fedavg", {"safeguard": "select", "evaluate": {"protocol": "global"}}, "which no client chooses"),
        ("fedgh", {"safeguard": {"level": 0.1}}, "safeguard.mode is 'off'"),
        ("fedgh", {"safeguard": {"mode": "select", "prior": 1.0}}, "set it to 'ensemble'"),
        ("fedgh", {"safeguard": "both"}, "safeguard.mode = 'both' is not valid"),
    ],
)
def test_settings_that_cannot_act_are_one_sentence(
    tmp_path: Path, method: str, settings: dict[str, Any], sentence: str
):
    with pytest.raises(PotluckError, match=sentence):
        potluck.run(method, out=tmp_path / "run", **(TINY | settings))
    assert not (tmp_path / "run").exists()


def test_flag_of_the_command(potluck: Any, tmp_path: Path):
    words = "run fedgh --safeguard select --rounds 1 --epochs 1 --clients 2 --set data.limit=120 --set data.split=2:1:1"
    code, _, err = potluck(*words.split(), "--out", str(tmp_path / "run"), "-q")
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["safeguard"]["mode"] == "select"


def test_report_and_terminal_show_the_choices(potluck: Any, tmp_path: Path):
    words = "run fedgh --safeguard ensemble --rounds 1 --epochs 1 --clients 2 --set data.limit=120 --set data.split=2:1:1"
    _, out, _ = potluck(*words.split(), "--out", str(tmp_path / "run"), "-q")
    assert "Safeguard ensemble:" in out
    page = (tmp_path / "run" / "report.html").read_text()
    assert '<section id="safeguard"' in page
    assert "Safeguard: fedgh, seed 0" in page


def test_answer_with_an_impossible_comparison_is_refused():
    answer = Answer(1, 0, scores={"own": Score(3, 4, 1.0, comparison=Comparison(0.5, 1, 2, 3, 0))})
    message = pack_result(answer)
    assert unpack_result(message, EmptyPayload) == answer
    invalid_values = [("weight", 1.5), ("weight", float("nan")), ("gained", 5), ("lost", 4), ("lost", -1)]
    for name, value in [*invalid_values, ("federated_gained", 5), ("federated_lost", 2)]:
        broken = json.loads(json.dumps(message.facts))
        broken["scores"]["own"]["comparison"][name] = value
        with pytest.raises(PayloadError):
            unpack_result(Message(broken), EmptyPayload)
