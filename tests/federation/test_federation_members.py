"""Clients of data sets: normalisation, class names and raw inputs come with the rows."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import potluck
from potluck.core.errors import PotluckError
from potluck.data import Data, as_data

NAMES = tuple(map(str, range(10)))


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


@pytest.fixture(scope="module")
def digits() -> Data:
    return potluck.load_data("digits")


def members(digits: Data) -> list[potluck.Member]:
    return [
        potluck.Member(net(), digits.subset(range(n, 120, 2)), digits.subset(range(200 + n, 260, 2)))
        for n in (0, 1)
    ]


def test_rows_of_a_data_set_are_scaled_as_the_data_set_says(digits: Data):
    member = potluck.Member(net(), digits.subset([3, 5]))
    x, y = member.train.take(slice(None))
    assert torch.equal(x, digits.x[[3, 5]] / 16)  # sixteen levels of grey
    assert torch.equal(y, digits.y[[3, 5]])
    assert len(member.test) == 0  # digits have no test part


def test_a_run_of_members_of_a_data_set_is_exported_with_names_and_raw_inputs(digits: Data, tmp_path: Path):
    federation = potluck.federate(members(digits))
    assert (federation.class_names, federation.raw) == (NAMES, digits.raw)
    run = potluck.run("fedavg", federation=federation, rounds=1, engine="serial", out=tmp_path / "run")
    assert run.class_names == NAMES
    place = potluck.export_client(run, 0, tmp_path / "model")
    facts = json.loads((place / "model.json").read_text())
    assert facts["class_names"] == list(NAMES)
    assert facts["raw"]["maximum"] == 16
    assert facts["input"]["scale"] == 1 / 16
    model = potluck.load_model(place, models={"Sequential": net})
    pixels = (digits.x[7, 0].int() * 255 // 16).byte().numpy()  # as a picture with 256 levels of grey
    rows = model.rows(Image.fromarray(pixels))
    assert (rows[0].int() - digits.x[7].int()).abs().max() <= 1
    assert model.predict(digits.x[:2])[0].class_name in NAMES


def test_the_test_part_of_a_data_set_is_used_unless_another_is_given():
    x, y = torch.rand(12, 4), torch.arange(12) % 3
    data = as_data((x[:8], y[:8]), test=(x[8:], y[8:]))
    assert len(potluck.Member(nn.Linear(4, 3), data).test) == 4
    assert len(potluck.Member(nn.Linear(4, 3), data.subset([0, 1]), (x[:3], y[:3])).test) == 3


def test_a_class_that_only_other_data_have_counts(digits: Data):
    few = digits.subset((digits.y < 3).nonzero().flatten()[:40])
    federation = potluck.federate([potluck.Member(net(), few, few)])
    assert federation.task.num_classes == 10


def test_data_sets_that_name_classes_differently_are_one_sentence(digits: Data):
    renamed = replace(digits.subset(range(50)), class_names=NAMES[::-1])
    with pytest.raises(
        PotluckError, match="name their classes differently .0, 1, 2, .*; 9, 8, 7, .*bring all to one"
    ):
        potluck.federate([potluck.Member(net(), digits.subset(range(50))), potluck.Member(net(), renamed)])


def test_bytes_that_are_hardly_pictures_are_one_warning(digits: Data):
    with pytest.warns(
        UserWarning, match="bytes up to 16, and bytes are divided by 255; .* pass the data set"
    ) as seen:
        potluck.Member(net(), (digits.x[:40], digits.y[:40]), (digits.x[40:60], digits.y[40:60]))
    assert [Path(warning.filename).name for warning in seen] == [Path(__file__).name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        potluck.Member(net(), digits.subset(range(40)))
        potluck.Member(net(), (digits.x[:40] * 15, digits.y[:40]))  # up to 240


def test_clients_without_test_samples_are_one_warning(digits: Data):
    with pytest.warns(UserWarning, match="No client has test samples, so accuracies are not measured; pass"):
        potluck.federate([potluck.Member(net(), digits.subset(range(40)))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        potluck.federate(members(digits))
        potluck.federate(
            [potluck.Member(net(), digits.subset(range(40)))], shared_test=digits.subset([50, 51])
        )
