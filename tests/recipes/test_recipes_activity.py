"""Rows whose mechanism had no effect are flagged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from potluck.recipes.measures import MECHANISMS, activity, stored_activity
from potluck.recipes.recipe import find_recipe
from potluck.recipes.reproduce import plan
from potluck.recipes.tables import measured, mechanism_lines, to_json
from potluck.runs.read import read_run
from potluck.runs.run import Run


def run_with(path: Path, notes: list[dict[str, Any]]) -> Run:
    path.mkdir()
    records = [
        {"step": number, "round": number, "accuracy": 0.5, "notes": note}
        for number, note in enumerate(notes, 1)
    ]
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "summary.json").write_text(json.dumps({"method": "any"}))
    return read_run(path)


@pytest.mark.parametrize(
    ("method", "notes", "value", "acts"),
    [
        ("pfedafm", [{"alpha": 1.0}, {"alpha": 0.9994}], 0.9994, False),
        ("pfedafm", [{"alpha": 0.97}, {"alpha": 1.0}], 0.97, True),
        ("fedgh", [{"movement": 0.0}, {"movement": 0.0}], 0.0, False),
        ("fedgh", [{"movement": 0.0}, {"movement": 0.02}], 0.02, True),
        ("fedl2g-f", [{}, {"movement": 0.1}], 0.1, True),
        ("fedapen", [{"lambda": 0.5}, {"lambda": 0.48}], 0.48, True),
    ],
)
def test_the_value_farthest_from_idle_decides(
    tmp_path: Path, method: str, notes: list[dict[str, Any]], value: float, acts: bool
):
    verdict = activity(method, run_with(tmp_path / "run", notes))
    assert verdict is not None
    assert (verdict.value, verdict.acts) == (value, acts)
    name = MECHANISMS[method].note
    points = [[number, note[name]] for number, note in enumerate(notes, 1) if name in note]
    assert stored_activity(method, {name: points}) == verdict


def test_a_method_without_a_mechanism_on_record_has_none(tmp_path: Path):
    run = run_with(tmp_path / "run", [{}])
    assert activity("fedavg", run) is None
    assert activity("fedgh", run) is None  # a run of a version that recorded nothing
    assert stored_activity("pfedafm", {}) is None


def test_an_idle_row_is_flagged_in_its_cell_below_the_table_and_in_the_data(tmp_path: Path):
    table = plan(find_recipe("pfedafm-table3"), "smoke", rows=["pFedAFM", "FedProto"], columns=["c10-n10"])
    run = run_with(tmp_path / "run", [{"alpha": 1.0}])
    for row in table.rows:
        key = (row, "c10-n10", 0)
        table.values[key] = {"c10-n10": 50.0}
        verdict = activity(table.work[key].method.name, run)
        if verdict is not None:
            table.activity[key] = verdict
    assert measured(table.cell("pFedAFM", "c10-n10"), 1) == "50.0 °"
    assert measured(table.cell("FedProto", "c10-n10"), 1) == "50.0"
    (line,) = mechanism_lines(table)
    assert line.startswith("Mechanism of pFedAFM did nothing on c10-n10, seed 0: alpha 1 (")
    (stored,) = json.loads(to_json(table))["mechanisms"]
    assert (stored["row"], stored["note"], stored["value"], stored["acts"]) == (
        "pFedAFM",
        "alpha",
        1.0,
        False,
    )


@pytest.mark.parametrize("name", ["fedgh-ablation", "pfedafm-table3"])
def test_mechanisms_are_recorded_by_the_methods_themselves(potluck, tmp_path: Path, name: str):
    rows, column = {
        "fedgh-ablation": ("FedGH,header never trained", "c10"),
        "pfedafm-table3": ("FedAPEN,pFedAFM", "c10-n10"),
    }[name]
    code, out, _ = potluck(
        "reproduce", name, "--scale", "smoke", "--rows", rows, "--columns", column, "--out", "r", "-q"
    )
    assert code == 0
    output = " ".join(out.split())
    if name == "fedgh-ablation":
        assert "Mechanism of FedGH acted: movement" in output
        assert "Mechanism of header never trained did nothing on cifar10, seed 0: movement 0 (" in output
    else:
        assert "Mechanism of pFedAFM " in output
        assert "Mechanism of FedAPEN " in output
