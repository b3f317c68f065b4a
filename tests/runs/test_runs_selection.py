"""Selecting the best round, from hand-written numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.analysis import compare, to_csv, to_markdown
from potluck.recipes.measures import measure
from potluck.runs.read import read_run
from potluck.runs.run import Run, best_row

ROUNDS: list[dict[str, Any]] = [
    {"step": 1, "round": 1, "accuracy": 0.5, "accuracy_micro": 0.45, "accuracy_validation": 0.6},
    {"step": 2, "round": 2, "accuracy": None, "accuracy_micro": None, "accuracy_validation": None},
    {"step": 3, "round": 3, "accuracy": 0.7, "accuracy_micro": 0.55, "accuracy_validation": 0.8},
    {"step": 4, "round": 4, "accuracy": 0.9, "accuracy_micro": 0.85, "accuracy_validation": 0.8},
    {"step": 5, "round": 5, "accuracy": 0.6, "accuracy_micro": 0.65, "accuracy_validation": 0.7},
]
BEST = {"validation": (0.7, 3), "test": (0.9, 4), "last": (0.6, 5)}


@pytest.mark.parametrize(("selected_by", "best"), BEST.items())
def test_the_best_round(selected_by: str, best: tuple[float, int]):
    row = best_row(ROUNDS, selected_by)
    assert row is not None
    assert (row["accuracy"], row["round"]) == best


def test_best_round_is_undefined_before_the_first_evaluation():
    assert best_row([], "last") is None
    assert best_row(ROUNDS[1:2], "test") is None
    assert best_row([{"round": 1, "accuracy": 0.5, "accuracy_validation": None}], "validation") is None


def written(path: Path, selected_by: str, *, finished: bool) -> Run:
    path.mkdir()
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROUNDS))
    (path / "experiment.toml").write_text(f'[method]\nname = "fedgh"\n[evaluate]\nselect = "{selected_by}"\n')
    if finished:
        accuracy, number = BEST[selected_by]
        facts = {
            "selected_by": selected_by,
            "best_accuracy": accuracy,
            "best_round": number,
            "method": "fedgh",
        }
        (path / "summary.json").write_text(json.dumps(facts))
    return read_run(path)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("selected_by", BEST)
def test_runs_tables_and_recipes_agree(tmp_path: Path, selected_by: str, finished: bool):
    run = written(tmp_path / "run", selected_by, finished=finished)
    assert (run.best_accuracy, run.best_round, run.selected_by) == (*BEST[selected_by], selected_by)
    (row,) = compare([run]).rows
    assert (row.best, row.best_round, row.selected_by) == (*BEST[selected_by], selected_by)
    assert measure(run, "best") == pytest.approx(100 * BEST[selected_by][0])
    micro = {"validation": 55.0, "test": 85.0, "last": 65.0}
    assert measure(run, "best", field="accuracy_micro") == pytest.approx(micro[selected_by])


def test_table_states_round_selection_and_warns_where_it_differs(tmp_path: Path):
    runs = [written(tmp_path / selection, selection, finished=True) for selection in ("validation", "test")]
    comparison = compare(runs)
    assert (
        "Best: test accuracy of the round that was best on validation samples or the round that was best on the"
        in (to_markdown(comparison))
    )
    assert any("select their best round by different rules" in note for note in comparison.notes)
    assert not any("different rules" in note for note in compare(runs[:1]).notes)
    assert "selected_by" in to_csv(comparison).splitlines()[0]


def test_a_run_of_an_older_folder_was_picked_on_test(tmp_path: Path):
    run = written(tmp_path / "run", "test", finished=False)
    (tmp_path / "run" / "experiment.toml").write_text("")
    assert read_run(run.path).selected_by == "test"


def test_automatic_selection_is_recorded_and_validation_part_kept(tmp_path: Path):
    quick = {"rounds": 1, "clients": 3, "models": "small-mlp", "engine": "serial", "training": {"epochs": 1}}
    two = potluck.run("standalone", out=tmp_path / "two", **quick)
    three = potluck.run("standalone", out=tmp_path / "three", data={"split": "8:1:1"}, **quick)
    last = potluck.run(
        "standalone", out=tmp_path / "last", data={"split": "8:1:1"}, evaluate={"select": "last"}, **quick
    )
    assert [run.experiment["evaluate"]["select"] for run in (two, three, last)] == [
        "test",
        "validation",
        "last",
    ]
    assert two.rounds[0]["accuracy_validation"] is None
    assert last.rounds[0]["accuracy_validation"] == three.rounds[0]["accuracy_validation"] is not None
    rows = [row for row in three.clients if row["final"]]
    assert all(row["validation_samples"] == pytest.approx(row["samples"], abs=1) for row in rows)
    everything = sum(row["samples"] + row["train_samples"] + row["validation_samples"] for row in rows)
    assert everything == 1797
