"""Stored cells: accepted and rejected rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from potluck.recipes.store import read_cells

WORDS = [
    "reproduce",
    "fedgh-table3",
    "--scale",
    "smoke",
    "--rows",
    "FedGH",
    "--columns",
    "c10,c10-kb,c10-rounds",
]


def test_every_cell_is_stored_with_its_provenance(potluck, tmp_path: Path):
    code, _, err = potluck(*WORDS, "--seeds", "0,1", "--out", "r", "--store", "kept/cells.csv", "-q")
    assert (code, err) == (0, "")
    cells = read_cells(tmp_path / "kept/cells.csv")
    assert [(cell.column, cell.seed) for cell in cells] == [
        (column, seed) for column in ("c10", "c10-kb", "c10-rounds") for seed in (0, 1)
    ]
    summary = json.loads((tmp_path / "r/cifar10/fedgh-seed1/summary.json").read_text())
    assert cells[1].here == pytest.approx(100 * summary["best_accuracy"], abs=1e-3)
    assert (cells[1].paper, cells[1].commit) == ("97.60", summary["made"]["commit"])
    assert cells[1].command.startswith("potluck reproduce fedgh-table3")
    assert cells[4].here is None  # nobody gets to 90 % in two rounds
    assert cells[0].experiment != cells[1].experiment
    assert all(cell.core_seconds is not None and cell.core_seconds > 0 for cell in cells)

    before = (tmp_path / "kept/cells.csv").read_text()
    assert potluck(*WORDS, "--out", "r", "--resume", "--store", "kept/cells.csv", "-q")[0] == 0
    assert (tmp_path / "kept/cells.csv").read_text() == before  # a run that was only read keeps its time


def test_unsuitable_settings_and_stores_are_rejected_before_any_run(potluck, tmp_path: Path):
    code, _, err = potluck(*WORDS, "--set", "training.lr=0.5", "--out", "r", "--store", "cells.csv", "-q")
    assert code == 2
    assert "--set training.lr=0.5 changes it" in err
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    code, _, err = potluck(*WORDS, "--out", "r", "--store", "other.csv", "-q")
    assert code == 2
    assert "'other.csv' does not hold measured cells" in err
    assert not (tmp_path / "r").exists()
