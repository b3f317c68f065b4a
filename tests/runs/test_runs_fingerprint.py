"""A run resumes with its own data only, however small a difference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import potluck
from potluck.core.errors import PotluckError
from potluck.data import as_data
from potluck.experiment import parse_experiment
from potluck.federation.population import build_federation
from potluck.runs import digests as module
from potluck.runs.digests import fingerprint
from support.tiny import StopAt

Y = torch.arange(200) % 10


def images() -> Tensor:
    return torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def of(x: Tensor, y: Tensor = Y, clients: int = 4) -> dict[str, str]:
    experiment = parse_experiment(
        {"partition": {"rule": "iid", "clients": clients}, "models": {"names": ["small-mlp"]}}
    )
    return fingerprint(build_federation(experiment, experiment.build_method(), data=as_data((x, y))))


def test_resume_refuses_other_pictures_with_the_same_labels(tmp_path: Path):
    def go(x: Tensor, **more: object) -> potluck.Run:
        return potluck.run(
            "fedavg",
            data=(x, Y),
            partition="iid",
            models="small-mlp",
            clients=2,
            rounds=3,
            training={"epochs": 1},
            engine="serial",
            out=tmp_path / "run",
            **more,
        )

    with pytest.raises(KeyboardInterrupt):
        go(images(), callbacks=[StopAt(2)])
    changed = images()
    changed[7] = 5.0
    with pytest.raises(PotluckError, match="The clients are not those of the run"):
        go(changed, resume=True)
    assert go(images(), resume=True).summary["rounds"] == 3


@pytest.mark.parametrize("row", [0, 13, 199])
def test_one_changed_row_is_another_population(row: int):
    changed = images()
    changed[row, 0, 3, 3] += 1
    assert of(changed)["clients"] != of(images())["clients"]
    assert of(changed)["models"] == of(images())["models"]


def test_fingerprint_samples_rows_across_large_data(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SAMPLED_BYTES", 0)
    before, changed = of(images()), images()
    assert of(images()) == before
    changed[::3] += 1
    assert of(changed) != before
    last = images()
    last[-1] += 1
    assert of(last) != before


def test_shared_rows_are_read_once(monkeypatch: pytest.MonkeyPatch):
    read = []
    monkeypatch.setattr(module._Arrays, "_compute", lambda self, array: read.append(len(array)) or "")
    of(images(), clients=20)
    assert read == [200]


def test_clients_of_one_row_have_a_fingerprint(tmp_path: Path):
    run = potluck.run(
        "fedgh", data={"limit": 30}, clients=20, partition={"rule": "iid"}, rounds=1, engine="serial",
        out=tmp_path / "run",
    )  # fmt: skip
    assert run.rounds[0]["participants"] == list(range(20))
