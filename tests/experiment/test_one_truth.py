"""Records match runs: objects fill the experiment; contradictions and settings without effect raise."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import potluck
from potluck.core.errors import PotluckError
from potluck.core.training import Training
from potluck.data.partitions.rules import Dirichlet
from potluck.experiment import parse_experiment
from potluck.methods.fedgh import FedGH
from potluck.runs.resolve import check_effects
from support.tiny import tiny


def recorded(run: potluck.Run) -> dict[str, Any]:
    return tomllib.loads((run.path / "experiment.toml").read_text())


def own(**more: Any) -> Any:
    return tiny(3, seed=7, training=Training(epochs=1, batch_size=4, lr=0.05), **more)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"training": {"lr": 9}}, r"training.lr = 9 contradicts the federation object with 0.05"),
        (
            {"devices": {"fleet": "phones"}},
            r"devices.fleet = 'phones' has no effect: it does not apply to the federation object",
        ),
        ({"engine": {"device": "nonsense"}}, r"engine.device = 'nonsense' contradicts"),
        ({"data": "cifar10"}, r"data.name = 'cifar10' contradicts the federation object with 'own data'"),
        ({"clients": 50}, r"partition.clients = 50 contradicts the federation object with 3"),
        ({"seed": 8}, r"seed = 8 contradicts the federation object with 7"),
        ({"models": "cnn5"}, r"models.names = 'cnn5' contradicts"),
        (
            {"data": {"limit": 20}},
            r"data.limit = 20 has no effect: it does not apply to the federation object",
        ),
    ],
)
def test_a_setting_that_could_not_apply_to_a_federation_is_refused(
    settings: dict[str, Any], says: str, tmp_path: Path
):
    with pytest.raises(PotluckError, match=says):
        potluck.run("fedgh", federation=own(), rounds=1, out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_federation_fills_the_experiment_with_its_facts(tmp_path: Path):
    run = potluck.run("fedgh", federation=own(), rounds=1, seed=7, engine="serial", out=tmp_path / "run")
    settings = recorded(run)
    assert settings["seed"] == run.summary["seed"] == 7
    assert settings["data"] == {"name": "own data"}
    assert settings["partition"] == {"rule": "own", "clients": 3}
    assert settings["models"]["precision"] == "float64"
    assert (settings["training"]["lr"], settings["training"]["epochs"]) == (0.05, 1)
    assert "devices" not in settings


def test_resuming_with_another_learning_rate_is_refused(tmp_path: Path):
    potluck.run("fedgh", federation=own(), rounds=1, engine="serial", out=tmp_path / "run")
    federation = tiny(3, seed=7, training=Training(epochs=1, batch_size=4, lr=0.5))
    with pytest.raises(PotluckError, match=r"training.lr is 0.05 there and 0.5 here"):
        potluck.run(
            "fedgh", federation=federation, rounds=1, engine="serial", out=tmp_path / "run", resume=True
        )


def test_a_method_object_and_a_setting_that_contradicts_it(tmp_path: Path):
    with pytest.raises(PotluckError, match=r"method.server_lr = 0.5 contradicts the method object with 0.05"):
        potluck.run(FedGH(server_lr=0.05), method={"server_lr": 0.5}, rounds=1, clients=2)
    with pytest.raises(
        PotluckError, match=r"Unknown setting 'method.server_rl'. Did you mean 'method.server_lr'"
    ):
        potluck.run(FedGH(), method={"server_rl": 0.5}, rounds=1, clients=2)
    run = potluck.run(
        FedGH(server_lr=0.05), federation=own(), rounds=1, engine="serial", out=tmp_path / "run"
    )
    assert recorded(run)["method"]["server_lr"] == 0.05


class Alternate(potluck.Partition):
    """Row i goes to client i mod N."""

    def deal(self, labels: Any, clients: int, rng: Any, groups: Any) -> list[Any]:
        return [np.arange(start, len(labels), clients) for start in range(clients)]

    def __str__(self) -> str:
        return "alternate"


class OnlyHalf(Dirichlet):
    """A rule of one's own that builds on one of ours."""

    def deal(self, labels: Any, clients: int, rng: Any, groups: Any) -> list[Any]:
        return [part[: len(part) // 2] for part in super().deal(labels, clients, rng, groups)]


def rows_of(tmp_path: Path, partition: Any) -> int:
    run = potluck.run(
        "standalone", data={"limit": 200}, partition=partition, clients=4, rounds=1, engine="serial",
        training={"epochs": 0}, out=tmp_path / str(type(partition).__name__),
    )  # fmt: skip
    return int(np.sum(run.summary["class_counts"]))


def test_user_defined_partitions_assign_the_rows(tmp_path: Path):
    assert rows_of(tmp_path, Alternate()) == pytest.approx(150, abs=4)  # three quarters train
    settings = tomllib.loads((tmp_path / "Alternate" / "experiment.toml").read_text())
    assert settings["partition"]["rule"] == "Alternate"
    assert settings["objects"] == ["partition"]


def test_a_subclass_of_a_built_in_rule_is_not_replaced_by_its_parent(tmp_path: Path):
    subclass_rows = rows_of(tmp_path, Dirichlet(0.5, min_size=4))
    assert rows_of(tmp_path, OnlyHalf(0.5, min_size=4)) <= 0.55 * subclass_rows


@pytest.mark.parametrize(
    ("method", "rule", "why"),
    [
        ("standalone", "median", "Standalone declares nothing"),
        ("heterofl", "krum", "updates of HeteroFL differ in shape"),
        ("fedrolex", "geometric-median", "updates of FedRolex differ in shape"),
    ],
)
def test_a_robust_rule_that_could_not_act_is_refused_with_the_reason(method: str, rule: str, why: str):
    with pytest.raises(PotluckError, match=f"schedule.robust = '{rule}' has no effect: {why}"):
        potluck.run(method, schedule={"robust": rule}, rounds=1, clients=2)
    with pytest.raises(
        PotluckError, match=r"schedule.attackers = 0.1 has no effect: schedule.robust = 'median'"
    ):
        potluck.run("fedgh", schedule={"robust": "median", "attackers": 0.1}, rounds=1, clients=2)


@pytest.mark.parametrize(("name", "value"), [("image_size", 64), ("pretrained", True)])
def test_settings_of_pretrained_networks_need_one(name: str, value: Any):
    def check(models: dict[str, Any]) -> None:
        check_effects(
            parse_experiment({"method": {"name": "fedgh"}, "models": {**models, name: value}}), FedGH()
        )

    with pytest.raises(
        PotluckError,
        match=rf"models\.{name} = .* has no effect: no model of cnn-5, small-cnn is a pretrained network",
    ):
        check({"names": ["cnn-5", "small-cnn"]})
    check({"names": ["cnn-5", "lite0+64"]})
    check({"names": ["cnn-5"], "shared": "lite0"})


def test_machines_of_their_own_cannot_train_as_a_stack():
    settings = {"method": {"name": "fedgh"}, "engine": {"name": "flower", "vectorize": "on"}}
    with pytest.raises(
        PotluckError, match=r"engine\.vectorize = 'on' has no effect: with engine\.name = 'flower'"
    ):
        check_effects(parse_experiment(settings), FedGH())


def test_a_default_of_an_earlier_version_in_a_recorded_experiment_counts_as_not_set():
    recorded = {"method": {"name": "fedgh"}, "engine": {"name": "serial", "lost_after": 1800.0}}
    check_effects(parse_experiment(recorded), FedGH())
    recorded["engine"]["lost_after"] = 1700.0
    with pytest.raises(
        PotluckError, match=r"engine\.lost_after = 1700\.0 has no effect: engine\.name is 'serial'"
    ):
        check_effects(parse_experiment(recorded), FedGH())


class Meddler(potluck.Callback):
    """Sets every number of every payload it is shown to zero."""

    def on_send(self, client: Any, message: Any, round_number: int) -> None:
        self._spoil(message)

    def on_update(self, update: Any, round_number: int) -> None:
        self._spoil(update.payload)

    @staticmethod
    def _spoil(payload: Any) -> None:
        for tensor in payload.flatten()[0].values():
            tensor.zero_()


@pytest.mark.parametrize("method", ["fedgh", "fedavg", "fedproto", "fedhe", "fedin"])
def test_payloads_shown_to_callbacks_are_copies(method: str, tmp_path: Path):
    def rows(name: str, callbacks: list[potluck.Callback]) -> list[dict[str, Any]]:
        run = potluck.run(
            method, clients=3, rounds=2, data={"limit": 120}, training={"epochs": 1}, engine="serial",
            callbacks=callbacks, out=tmp_path / name,
        )  # fmt: skip
        return [{**row, "seconds": 0} for row in run.rounds]

    assert rows("spoiled", [Meddler()]) == rows("plain", [])
