"""Features of frozen networks, computed once: the same training as through the networks, on every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import potluck
from potluck.core.errors import PotluckError
from potluck.core.random import seeded
from potluck.core.samples import outputs
from potluck.data import load_data
from potluck.experiment import parse_experiment
from potluck.federation.features import RowFeatures, with_features
from potluck.federation.federation import Federation
from potluck.federation.population import build_federation
from potluck.models import pretrained
from potluck.suites.baselines import with_training_samples
from potluck.wire.score import score_outputs

NETWORKS = """
from torch import nn

def Narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 4))

def Wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 4))
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An experiment with two frozen networks of unequal feature sizes, whose weights lie in files."""
    (tmp_path / "frozen_networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import frozen_networks

    names = []
    for name in ("Narrow", "Wide"):
        with seeded(name):
            network: nn.Module = getattr(frozen_networks, name)()
        file = tmp_path / f"{name}.safetensors"
        save_file(network.state_dict(), file)
        names.append(f"file:{file}@frozen_networks:{name}")
    return {
        "method": {"name": "fedgh"},
        "data": {"limit": 120, "root": str(tmp_path / "data")},
        "partition": {"clients": 4},
        "models": {"names": names, "feature_dim": 5},
        "training": {"train": "head", "epochs": 1},
        "schedule": {"rounds": 2},
        "engine": {"name": "serial"},
    }


def test_another_computation_with_the_same_weights_has_features_of_its_own(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    build(settings)
    folders = set((tmp_path / "data" / ".potluck" / "features").iterdir())
    assert len(folders) == 2
    build(settings)
    assert set((tmp_path / "data" / ".potluck" / "features").iterdir()) == folders
    (tmp_path / "frozen_networks.py").write_text(NETWORKS.replace("Tanh", "ReLU"))
    build(settings)
    assert len(set((tmp_path / "data" / ".potluck" / "features").iterdir()) - folders) == 2


def test_stored_features_do_not_depend_on_what_was_stored_before(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding of a network depends on the batch, so each row is computed by itself."""
    sizes: list[int] = []
    original = pretrained.PretrainedModel.features

    def features(self: pretrained.PretrainedModel, x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return original(self, x)

    monkeypatch.setattr(pretrained.PretrainedModel, "features", features)
    build(settings)
    assert len(sizes) >= 120
    assert set(sizes) == {1}


def test_a_network_that_cannot_take_the_inputs_is_one_sentence(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import frozen_networks

    def Narrower() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(49, 6), nn.Tanh(), nn.Linear(6, 4))

    monkeypatch.setattr(frozen_networks, "Narrower", Narrower, raising=False)
    save_file(Narrower().state_dict(), tmp_path / "narrower.safetensors")
    name = f"file:{tmp_path / 'narrower.safetensors'}@frozen_networks:Narrower"
    with pytest.raises(
        PotluckError, match=r"cannot take inputs of shape \(1, 8, 8\) \(.*\); leave out models\.image_size"
    ):
        build(settings, models={"names": [name]})


def build(settings: dict[str, Any], **more: dict[str, Any]) -> Federation:
    changed = {**settings, **{name: {**settings.get(name, {}), **part} for name, part in more.items()}}
    experiment = parse_experiment(changed)
    return build_federation(experiment, experiment.build_method())


def test_clients_read_the_features_that_the_network_computes(settings: dict[str, Any]) -> None:
    cached, plain = build(settings), build(settings, models={"cache": False})
    for index in range(4):
        fast, slow = cached.client(index), plain.client(index)
        assert fast.info == slow.info
        assert any(isinstance(part, RowFeatures) for part in fast.model.modules())
        assert fast.model.trained_state().keys() == slow.model.trained_state().keys()
        for stored, computed in ((fast.train, slow.train), (fast.test, slow.test)):
            assert torch.equal(stored.labels, computed.labels)
            actual, expected = (
                torch.cat([x for x, _ in outputs(me.model, part, me.task)])
                for me, part in ((fast, stored), (slow, computed))
            )
            assert torch.allclose(actual, expected, atol=1e-6)  # equal first weights too


@pytest.mark.parametrize("method", ["fedgh", "fedmd", "lg-fedavg", "fedcgs"])
def test_training_on_stored_features_is_training_with_the_network(
    settings: dict[str, Any], tmp_path: Path, method: str
) -> None:
    runs = [
        potluck.run(
            {**settings, "method": {"name": method}, "models": {**settings["models"], "cache": cache}},
            out=tmp_path / str(cache),
        )
        for cache in (True, False)
    ]
    first, second = (run.rounds[-1] for run in runs)
    assert first["loss"] == pytest.approx(second["loss"], abs=1e-4)
    assert first["bytes_up"] == second["bytes_up"]
    assert first["floats_down"] == second["floats_down"]


def test_every_engine_and_a_resumed_run_give_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    uninterrupted = potluck.run(settings, out=tmp_path / "serial")
    pool = potluck.run({**settings, "engine": {"name": "pool", "workers": 2}}, out=tmp_path / "pool")
    potluck.run({**settings, "schedule": {"rounds": 1}}, out=tmp_path / "resumed")
    resumed = potluck.run({**settings, "schedule": {"rounds": 2}}, out=tmp_path / "resumed", resume=True)
    losses = [[row["loss"] for row in run.rounds] for run in (uninterrupted, pool, resumed)]
    assert losses[0] == losses[1] == losses[2]


def test_a_second_population_builds_no_network(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build(settings)
    monkeypatch.setattr(pretrained, "_build_file", lambda *_: pytest.fail("the network was built"))
    after = build(settings)
    first, second = (fed.client(1).model.base.table.features for fed in (before, after))
    assert torch.equal(first.nan_to_num(9), second.nan_to_num(9))


def test_regression_sees_stored_features_and_pooled_training_is_refused(settings: dict[str, Any]) -> None:
    federation = build(settings)
    me = federation.client(1)
    features = with_features(me.train, federation.task.architectures[me.info.architecture])
    assert torch.equal(features.x, me.model.base.features(me.train.take(slice(0, len(me.train)))[0]))
    assert bool(me.model.base.features(federation.client(0).train.take(slice(0, 1))[0]).isnan().all())
    with pytest.raises(PotluckError, match="'pooled' needs every client's features from every network"):
        with_training_samples(federation, "pooled", ())


def test_other_rows_or_weights_are_not_taken_for_these(settings: dict[str, Any]) -> None:
    rows = {float(part.x[:, 1].sum()) for part in (build(settings).members[0].train,
                                                   build(settings, data={"normalise": "half"}).members[0].train)}  # fmt: skip
    assert len(rows) == 2
    features = build(settings).client(0).model.base.table.features
    file = Path(settings["models"]["names"][0].partition("@")[0].removeprefix("file:"))
    save_file({key: torch.ones(shape) for key, shape in SHAPES.items()}, file)
    assert not torch.allclose(features, build(settings).client(0).model.base.table.features, equal_nan=True)


SHAPES = {"1.weight": (6, 64), "1.bias": (6,), "3.weight": (4, 6), "3.bias": (4,)}


@pytest.mark.parametrize(
    "more",
    [
        {"training": {"train": "all"}},
        {"training": {"train": "head,all"}},
        {"data": {"augment": ["flip"]}},
        {"models": {"pretrained": False}},
        {"method": {"name": "fml"}, "models": {"shared": "small-mlp"}},
        {"models": {"names": ["small-mlp"]}},
    ],
)
def test_settings_that_change_features_prevent_caching(
    settings: dict[str, Any], more: dict[str, Any]
) -> None:
    model = build(settings, **more).client(0).model
    assert not any(isinstance(part, RowFeatures) for part in model.modules())


def test_a_new_client_joins_with_rows_of_its_own(settings: dict[str, Any], tmp_path: Path) -> None:
    run = potluck.run(settings, out=tmp_path / "run")
    joined = potluck.join_run(
        run.path, load_data("digits").limit(60), settings["models"]["names"][1], epochs=1
    )
    assert joined.train == 36
    run = potluck.run({**settings, "method": {"name": "fedmd"}}, out=tmp_path / "public")
    with pytest.raises(PotluckError, match="public data as stored features, which a new client cannot read"):
        potluck.join_run(run.path, load_data("digits").limit(60), settings["models"]["names"][1], epochs=1)


def test_a_new_client_of_a_run_without_a_projection_joins_and_exports(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    wide = {"names": settings["models"]["names"][1:], "feature_dim": None}
    run = potluck.run({**settings, "models": wide, "method": {"name": "fedcgs"}}, out=tmp_path / "run")
    joined = potluck.join_run(run.path, load_data("digits").limit(60), wide["names"][0], epochs=1)
    assert joined.train == 36


@pytest.mark.parametrize(("feature_dim", "method"), [(5, "fedgh"), (None, "fedcgs"), (None, "standalone")])
def test_an_exported_model_has_its_network_and_takes_images(
    settings: dict[str, Any], tmp_path: Path, feature_dim: int | None, method: str
) -> None:
    import frozen_networks

    wide = settings["models"]["names"][1]
    names = settings["models"]["names"] if feature_dim else [wide]
    settings = {
        **settings,
        "method": {"name": method},
        "models": {"names": names, "feature_dim": feature_dim},
    }
    run = potluck.run(settings, out=tmp_path / "run")
    potluck.export_client(run.path, 1, tmp_path / "model")
    model = potluck.load_model(tmp_path / "model", models={"Wide": frozen_networks.Wide})
    plain = build(settings, models={"cache": False})
    score = score_outputs(outputs(model, plain.members[1].test, plain.task))
    (row,) = [row for row in run.clients if row["final"] and row["client"] == 1]
    assert score.accuracy == row["accuracy"]
    assert score.loss == pytest.approx(row["loss"], abs=1e-5)


def test_of_networks_with_equal_shapes_the_clients_own_is_named(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "alike_networks.py").write_text(
        NETWORKS.replace("Narrow", "First")
        .replace("Wide", "Second")
        .replace("64, 12", "64, 6")
        .replace("12, 4", "6, 4")
    )
    file = settings["models"]["names"][0].partition("@")[0]
    models = {"names": [f"{file}@alike_networks:{name}" for name in ("First", "Second")]}
    run = potluck.run({**settings, "models": models, "method": {"name": "fedcgs"}}, out=tmp_path / "run")
    for client, name in enumerate(models["names"]):
        place = potluck.export_client(run.path, client, tmp_path / f"model-{client}")
        assert json.loads((place / "model.json").read_text())["model"]["own"] == name
