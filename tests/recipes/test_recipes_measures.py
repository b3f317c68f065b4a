"""Measures of a cell, from runs with known numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from potluck.recipes.content import merged
from potluck.recipes.measures import MeasureName, measure
from potluck.recipes.recipe import find_recipe
from potluck.recipes.reproduce import Cell, plan
from potluck.recipes.tables import decimals, measured
from potluck.runs.read import read_run
from potluck.runs.run import Run


def run_of(path: Path, accuracies: list[float | None], **summary: Any) -> Run:
    path.mkdir()
    records = [
        {
            "step": number,
            "round": number,
            "accuracy": accuracy,
            "accuracy_micro": None if accuracy is None else accuracy / 2,
            "floats_up": 10 * 1002,
            "floats_down": 0 if number == 1 else 10 * 5010,
            "participants": list(range(10)),
        }
        for number, accuracy in enumerate(accuracies, 1)
    ]
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "summary.json").write_text(json.dumps({"method": "fedgh", **summary}))
    return read_run(path)


@pytest.mark.parametrize(
    ("name", "target", "value"),
    [
        ("best", None, 95.0),
        ("last", None, 93.0),
        ("rounds", 0.9, 2),
        ("speed-up", 0.9, 2),
        ("kib-per-client-round", None, 23.4453125),
        ("kib-to-target", 0.9, 468.90625),
        ("mib-to-target", 0.9, 468.90625 / 1024),
        ("mib-up-per-round", None, 4 * 10020 / 2**20),
        ("mib-down-per-round", None, 4 * 50100 / 2**20),
        ("floats-up", None, 1002),
    ],
)
def test_fedgh_on_cifar10_as_its_table_counts(
    tmp_path: Path, name: MeasureName, target: float | None, value: float
):
    paper = {"up": 1002, "down": 5000, "note": "header bias not counted"}
    run = run_of(tmp_path / "run", [None, 0.91, 0.95, 0.93], paper_accounting=paper)
    assert measure(run, name, target) == pytest.approx(value)


def test_a_paper_that_counts_as_we_do_and_other_accuracies(tmp_path: Path):
    run = run_of(
        tmp_path / "run", [0.8, 0.5], floats_up_per_client_round=5010, floats_down_per_client_round=5010
    )
    assert measure(run, "kib-per-client-round") == pytest.approx(39.140625)
    assert measure(run, "best", field="accuracy_micro") == pytest.approx(40)
    assert math.isnan(measure(run, "kib-to-target", 0.9))
    assert math.isnan(measure(run_of(tmp_path / "none", [None]), "best"))


def test_cells_over_seeds():
    assert measured(Cell("97.60", (90.0, 92.0)), 2) == "91.00 ± 1.41"
    assert measured(Cell("97.60", (90.04,)), 1) == "90.0"
    assert measured(Cell("4", (3.0, math.nan)), 0) == "3 (1/2)"
    assert measured(Cell("4", (math.nan,)), 0) == "–"
    assert measured(Cell("4", (), failed=True), 0) == "failed"
    assert measured(Cell("4"), 0) == "…"
    assert measured(Cell("n/a"), 0) == ""


def test_decimals_are_those_of_the_paper():
    recipe = find_recipe("fedl2g-table3")
    assert [decimals(recipe, column) for column in recipe.columns] == [1, 1, 1, 2, 2, 2, 1]
    assert decimals(find_recipe("fedin-table1"), "rounds") == 0


def test_speed_up_is_relative_to_the_first_row():
    table = plan(find_recipe("fedin-table3"), "smoke")
    for row, rounds in (("FedAvg", 100.0), ("FedIN", 40.0), ("MOON", math.nan)):
        table.values[row, "non-iid", 0] = dict.fromkeys(table.columns, rounds)
    assert table.cell("FedIN", "speed-up").mean == pytest.approx(2.5)
    assert table.cell("FedAvg", "speed-up").mean == pytest.approx(1)
    assert math.isnan(table.cell("MOON", "speed-up").mean)
    assert measured(table.cell("FedProx", "speed-up"), 1) == "…"


def test_merging_leaves_its_sources_alone():
    base = {"data": {"name": "digits"}}
    result = merged(base, {"data": {"limit": 5}}, {"seed": 1})
    assert result == {"data": {"name": "digits", "limit": 5}, "seed": 1}
    alone = merged(base)
    alone["data"]["name"] = "mnist"
    assert base == {"data": {"name": "digits"}}
