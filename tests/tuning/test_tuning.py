"""Tuning: the same study on any number of cores and after any stop, scored on validation samples."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

import pytest

from potluck.core.errors import PotluckError
from potluck.experiment import parse_experiment, read_experiment
from potluck.loop.callbacks import Step
from potluck.methods import METHODS
from potluck.tuning.space import default_space, grid_space, parse_space, prepare_values
from potluck.tuning.study import Study, TrialPruned, TrialResult, ValidationCurve

pytest.importorskip("optuna")

SMALL = {
    "method": {"name": "standalone"},
    "data": {"limit": 120},
    "partition": {"rule": "iid", "clients": 3},
    "models": {"names": ["small-mlp"]},
    "training": {"epochs": 1},
    "schedule": {"rounds": 2},
}
SPACE = {"training.lr": {"low": 0.01, "high": 0.3, "log": True}}


def study(folder: Path, trials: int) -> Study:
    values, _ = prepare_values(SMALL)
    return Study(values, parse_space(SPACE, "of a test"), folder, trials)


def facts(tried: list[TrialResult]) -> list[tuple[int, dict[str, Any], float]]:
    return [(trial.number, trial.settings, trial.score) for trial in tried]


def test_a_study_is_the_same_on_any_number_of_cores_and_in_pieces(tmp_path: Path):
    uninterrupted = facts(study(tmp_path / "whole", 6).run(2, lambda _: None))
    assert len(uninterrupted) == 6
    assert len({trial[1]["training.lr"] for trial in uninterrupted}) == 6
    messages: list[str] = []
    study(tmp_path / "pieces", 3).run(1, messages.append)
    assert len(messages) == 3
    assert facts(study(tmp_path / "pieces", 6).run(1, messages.append)) == uninterrupted
    assert len(messages) == 6  # nothing was done twice


def test_an_interrupted_trial_is_done_again_with_the_same_settings(tmp_path: Path):
    uninterrupted = facts(study(tmp_path / "whole", 4).run(1, lambda _: None))
    cut = study(tmp_path / "cut", 4)
    batch = cut._next_batch()  # and then the process dies
    assert len(batch) == 4
    assert facts(study(tmp_path / "cut", 4).run(1, lambda _: None)) == uninterrupted


def test_another_question_is_not_added_to_a_study(tmp_path: Path):
    study(tmp_path, 1)
    values, _ = prepare_values({**SMALL, "training": {"epochs": 2}})
    with pytest.raises(PotluckError, match="holds a study of another experiment"):
        Study(values, parse_space(SPACE, "of a test"), tmp_path, 1)


class Record:
    def __init__(self, number: int, validation: float | None) -> None:
        self.round, self.accuracy_validation = number, validation


def step(number: int, validation: float | None) -> Step:
    return Step(Record(number, validation), None, (), (), lambda _: {})  # type: ignore[arg-type]


def test_a_trial_is_given_up_when_its_best_is_below_the_floor():
    watch = ValidationCurve({2: 0.5, 3: 0.6})
    watch.on_step(step(1, 0.1))  # no floor yet
    watch.on_step(step(2, 0.7))
    watch.on_step(step(3, 0.2))  # the best so far counts
    watch.on_step(step(3, None))
    curve = ValidationCurve({2: 0.5})
    curve.on_step(step(1, 0.49))
    with pytest.raises(TrialPruned):
        curve.on_step(step(2, 0.4))


def test_the_floor_is_the_median_of_the_best_so_far(tmp_path: Path):
    tuning_study = study(tmp_path, 8)
    curves = ([(1, 0.9), (2, 0.1)], [(1, 0.1), (2, 0.3)], [(1, 0.2), (2, 0.4)], [(1, 0.3), (2, 0.5)])
    for curve in curves:
        trial = tuning_study._study.ask()
        for number, value in curve:
            trial.report(value, number)
        tuning_study._study.tell(trial, 0.5)
    # By round 2 the trials' best were 0.9, 0.3, 0.4, 0.5: between 0.4 and 0.5.
    assert tuning_study._floor()[2] == pytest.approx(0.45)


def test_the_command_ends_with_the_best_experiment_a_table_and_a_figure(potluck: Any, tmp_path: Path):
    flags = ["--set", "data.limit=120", "--clients", "3", "--rounds", "1", "--partition", "iid", "-q"]
    code, out, err = potluck("tune", "fedprox", "--grid", "method.mu=0,0.1,1", *flags, "--out", "study")
    assert (code, err) == (0, "")
    assert "3 trials of method.mu" in out
    best = tomllib.loads((tmp_path / "study" / "best.toml").read_text())
    rows = list(csv.DictReader((tmp_path / "study" / "trials.csv").open()))
    assert [float(row["method.mu"]) for row in rows] != []
    assert sorted(float(row["method.mu"]) for row in rows) == [0.0, 0.1, 1.0]
    assert float(rows[0]["validation_accuracy"]) == max(float(row["validation_accuracy"]) for row in rows)
    assert best["method"]["mu"] == float(rows[0]["method.mu"])
    assert best["evaluate"]["select"] == "validation"
    assert best["data"]["split"] == "6:2:2"
    assert "method.mu" in (tmp_path / "study" / "sensitivity.svg").read_text()
    parse_experiment(read_experiment(tmp_path / "study" / "best.toml"))
    assert potluck("tune", "fedprox", "--grid", "method.mu=0,0.1,1", *flags, "--out", "study")[0] == 2
    again = potluck("tune", "fedprox", "--grid", "method.mu=0,0.1,1", *flags, "--out", "study", "--resume")
    assert again[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fedprox", "--grid", "method.mju=1"], "Unknown setting of method 'fedprox' 'mju'"),
        (["fedprox", "--grid", "method.mu=-1"], "method.mu"),
        (["fedprox", "--grid", "method.mu"], "write --grid section.key=value,value"),
        (["fedprox", "--space", "nowhere.toml"], "cannot be read"),
        (["fedprox", "--set", "data.split=75:25"], "needs validation samples"),
        (["fedprox", "--set", "evaluate.select=test"], "evaluate.select = 'test' is not supported by tune"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_trained(
    potluck: Any, tmp_path: Path, words: list[str], says: str
):
    code, _, err = potluck("tune", *words)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_spaces_are_lists_or_ranges():
    space = parse_space({"training": {"lr": [0.1, 0.2]}, "method.mu": {"low": 1, "high": 5}}, "x")
    assert space.choices["training.lr"].values == (0.1, 0.2)
    assert space.choices["method.mu"].whole
    assert not space.is_grid
    assert grid_space(["method.hidden=true,false", "training.lr=0.1"]).combinations() == [
        {"method.hidden": True, "training.lr": 0.1},
        {"method.hidden": False, "training.lr": 0.1},
    ]
    for odd in ({"low": 2, "high": 1}, {"low": 0, "high": 1, "log": True}, {"low": "a", "high": 1}):
        with pytest.raises(PotluckError, match="low must be a number below high"):
            parse_space({"training.lr": odd}, "x")
    with pytest.raises(PotluckError, match="write a list of values"):
        parse_space({"training.lr": 0.1}, "x")
    with pytest.raises(PotluckError, match="is empty"):
        parse_space({}, "x")


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_comes_with_a_space_it_accepts(method: str):
    space = default_space(method)
    assert "training.lr" in space.choices
    space.check({"method": {"name": method}})
