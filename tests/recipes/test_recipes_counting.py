"""Counted cells: hand-computed numbers, memory and operations."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from potluck.core.errors import PotluckError
from potluck.recipes.counting import blank_data
from potluck.recipes.recipe import find_recipe
from potluck.recipes.reproduce import Reproduction, check_data, plan
from potluck.recipes.tables import decimals


def cells(folder: Path) -> dict[tuple[str, str], float]:
    with open(folder / "reproduction.csv", encoding="utf-8") as file:
        return {(line["row"], line["column"]): float(line["here"]) for line in csv.DictReader(file)}


@pytest.fixture
def count(potluck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Reproduce a part of a counted recipe without any data and return its cells."""
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path / "no-data"))

    def run(name: str, rows: str, columns: str) -> dict[tuple[str, str], float]:
        code, out, err = potluck("reproduce", name, "--rows", rows, "--columns", columns, "--out", "r", "-q")
        assert (code, err) == (0, "")
        assert "at every scale: nothing is learned" in " ".join(out.split())
        return cells(tmp_path / "r")

    return run


# Forward operations of a sample, twice the multiplications: conv1 5x5x3 on 28x28, conv2 5x5x16 on 10x10, three layers.
CONV1 = 2 * 75 * 16 * 28 * 28
CONV2 = {16: 2 * 400 * 16 * 100, 32: 2 * 400 * 32 * 100}
BODIES = [
    CONV1 + CONV2[channels] + 2 * 25 * channels * hidden + 2 * hidden * 500
    for channels, hidden in ((32, 2000), (16, 2000), (32, 1000), (32, 800), (32, 500))
]
HEAD = 2 * 500 * 10
BODY = sum(BODIES) / 5
TRAINING = 3 * (BODY + HEAD) - CONV1  # the images need no gradient


def test_fedgh_counts_its_traffic_and_a_pass_for_class_means(count):
    counts = count("fedgh-traffic", "Standalone,FedProto,FedGH", "c10-kb,c10-flops")
    assert counts["FedGH", "c10-kb"] == pytest.approx(4 * (2 * 500 + 2 + 500 * 10) / 1024)  # 23.45
    assert counts["FedProto", "c10-kb"] == pytest.approx(4 * 2 * (2 * 500) / 1024)  # 7.81
    assert counts["Standalone", "c10-flops"] == pytest.approx(TRAINING / 1e6)
    assert counts["FedGH", "c10-flops"] == pytest.approx((TRAINING + BODY) / 1e6)
    assert counts["FedProto", "c10-flops"] == pytest.approx((TRAINING + BODY) / 1e6)


def test_pfedafm_sends_the_small_body_and_trains_it_as_well(count):
    counts = count("pfedafm-traffic", "pFedAFM", "c10-kb,c10-flops")
    assert counts["pFedAFM", "c10-kb"] == pytest.approx(4 * 2 * 665_048 / 1024)
    small = BODIES[4]
    mixed = TRAINING + small  # the shared extractor has no gradient in the first phase
    taught = 3 * small - CONV1 + 2 * HEAD  # the head passes a gradient on and takes none
    assert counts["pFedAFM", "c10-flops"] == pytest.approx((mixed + taught) / 1e6)


def test_fedhe_sends_110_numbers_and_fedmd_its_images(count):
    counts = count("fedhe-traffic", "FedAvg,FedHe,FedMD", "mnist-numbers,mnist-saved")
    assert counts["FedAvg", "mnist-numbers"] == 306_496
    assert counts["FedHe", "mnist-numbers"] == 10 * 11
    assert counts["FedMD", "mnist-numbers"] == 10 * 794
    assert counts["FedAvg", "mnist-saved"] == 0
    assert counts["FedHe", "mnist-saved"] == pytest.approx(100 * (1 - 110 / 306_496))
    assert counts["FedMD", "mnist-saved"] == pytest.approx(100 * (1 - 7940 / 306_496))


def test_fedin_counts_parameters_and_one_batch_of_pairs(count):
    counts = count("fedin-table6", "FedAvg,Scaffold,MOON,FedIN", "params,memory")
    mean, pairs = 12.288023, 16 * (64 * 8 * 8 + 512) / 1e6
    assert counts["FedAvg", "params"] == pytest.approx(mean, abs=1e-6)
    assert counts["Scaffold", "params"] == pytest.approx(2 * mean, abs=1e-6)
    assert counts["FedIN", "params"] == pytest.approx(mean + pairs, abs=1e-6)
    models = 4 * 61_440_114 / 2**20
    assert counts["FedAvg", "memory"] == pytest.approx(models, abs=1e-3)
    assert counts["Scaffold", "memory"] == pytest.approx(2 * models, abs=1e-3)
    assert counts["MOON", "memory"] == pytest.approx(3 * models, abs=1e-3)
    assert counts["FedIN", "memory"] == pytest.approx(models + 5 * 4e6 * pairs / 2**20, abs=1e-3)


def reproduction(name: str, scale: str) -> Reproduction:
    return plan(find_recipe(name), scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fedgh-traffic", "pfedafm-traffic", "fedhe-traffic", "fedin-table6"])
def test_every_scale_counts_the_same_and_needs_no_data(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path))
    work = reproduction(name, "paper").work
    assert (
        reproduction(name, "smoke").work
        == reproduction(name, "small").work
        == reproduction(name, "full").work
        == work
    )
    check_data(reproduction(name, "paper"))


def test_blank_data_have_the_shape_of_the_set_and_all_classes():
    data = blank_data("cifar100")
    assert (data.num_classes, data.input_shape) == (100, (3, 32, 32))
    assert data.y.bincount().tolist() == [100] * 100
    assert data.x.untyped_storage().nbytes() == 4  # one pixel for all
    with pytest.raises(PotluckError, match="data set to count on"):
        blank_data("har")


def test_a_column_without_printed_numbers_has_two_decimals_and_a_saved_share_one_more():
    assert decimals(find_recipe("fedgh-traffic"), "c10-flops") == 2
    assert decimals(find_recipe("fedhe-traffic"), "mnist-saved") == 2
    assert decimals(find_recipe("fedhe-traffic"), "mnist-numbers") == 0


def test_a_counted_recipe_has_no_cost_to_estimate(potluck):
    code, _, err = potluck("reproduce", "fedgh-traffic", "--estimate")
    assert code == 2
    assert err.strip().endswith(
        "--estimate has no effect on 'fedgh-traffic', which is counted in a minute; leave it out."
    )
