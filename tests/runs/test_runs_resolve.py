"""Resolving an experiment: the plan is what a run records and a resumed run keeps."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import potluck
from potluck.core.errors import PotluckError
from potluck.experiment import parse_experiment
from potluck.runs import engine
from potluck.runs.engine import recorded_engine
from potluck.runs.plan import Parts
from potluck.runs.resolve import resolve
from support.tiny import tiny

SMALL = {
    "data": {"limit": 120},
    "partition": {"clients": 3},
    "training": {"epochs": 1},
    "schedule": {"rounds": 1},
}


def test_plan_equals_the_recorded_experiment(tmp_path: Path):
    experiment = parse_experiment(SMALL | {"engine": {"name": "serial"}})
    plan = resolve(experiment)
    run = potluck.run(experiment, out=tmp_path / "run")
    assert (run.path / "experiment.toml").read_text() == plan.experiment.to_toml()
    assert plan.experiment.schedule.mode == "sync"
    assert plan.experiment.models.names == ("small5",)
    assert plan.experiment.evaluate.select == "test"
    assert plan.federation.channels_last == frozenset(plan.experiment.engine.channels_last)


def test_a_plan_cannot_be_changed():
    plan = resolve(parse_experiment(SMALL))
    with pytest.raises(FrozenInstanceError):
        plan.experiment = parse_experiment({})  # type: ignore[misc]


def test_a_recorded_choice_is_kept_and_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(engine, "_measure_vectorize", lambda plan: pytest.fail("measured again"))
    settings = SMALL | {"engine": {"vectorize": "auto"}, "models": {"names": ["small-mlp"]}}
    recorded = {"name": "serial", "vectorize": "on", "channels_last": []}
    chosen = resolve(parse_experiment(settings), recorded=recorded).experiment.engine
    assert (chosen.name, chosen.vectorize, chosen.channels_last) == ("serial", "on", ())
    assert recorded_engine(tmp_path) == recorded_engine(None) == {}


def test_without_measuring_auto_stays_auto(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine, "_measure_vectorize", lambda plan: pytest.fail("measured"))
    chosen = resolve(parse_experiment(SMALL | {"engine": {"vectorize": "auto"}}), measure=False)
    assert (chosen.experiment.engine.name, chosen.experiment.engine.vectorize) == ("auto", "auto")


def test_objects_determine_settings_and_contradictions_are_errors():
    federation = tiny(3, seed=7)
    plan = resolve(parse_experiment({}), Parts(federation=federation), asked={})
    assert (plan.experiment.seed, plan.experiment.partition.clients) == (7, 3)
    assert plan.experiment.objects == ("federation",)
    with pytest.raises(PotluckError, match="seed = 8 contradicts the federation object with 7"):
        resolve(parse_experiment({"seed": 8}), Parts(federation=federation), asked={"seed": 8})
    with pytest.raises(PotluckError, match=r"made with Python objects \(federation\)"):
        resolve(plan.experiment)
    with pytest.raises(PotluckError, match="seed = 0 contradicts the federation object with 7"):
        resolve(parse_experiment({}), Parts(federation=federation), asked={"seed": 0})
