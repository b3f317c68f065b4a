"""Baselines: what needs no network, and standalone training on other samples, on clients made by hand."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from generate.benchmark.baselines import baselines, network_lines
from generate.benchmark.formatting import needs_public_data
from potluck.core.errors import PotluckError
from potluck.core.samples import Samples
from potluck.experiment import parse_experiment
from potluck.runs.resolve import resolve
from potluck.suites import baselines as suite_baselines
from potluck.suites.baselines import LINES, compute_line, join_samples, with_training_samples
from potluck.suites.statistics import summarise_task
from potluck.suites.store import Results
from potluck.suites.suite import find_suite, parse_suite
from potluck.suites.work import Work, measure, smallest_tenth
from tests.support.suites import add_rows

VALUES = {
    "method": {"name": "standalone"},
    "data": {"name": "digits", "limit": 200, "split": "2:1:2", "public": 0.1},
    "partition": {"rule": "dirichlet:0.5", "clients": 5},
    "models": {"names": ["small-mlp"]},
    "schedule": {"rounds": 1},
    "evaluate": {"newcomers": 0.2},
    "engine": {"name": "serial", "checkpoint_every": 0},
}


def plan():
    return resolve(parse_experiment(VALUES))


def test_majority_is_the_share_of_the_most_frequent_training_class():
    planned = plan()
    scores = compute_line("majority", planned)
    taking_part = [
        info.index for info in planned.federation.task.clients if info.index not in planned.newcomers
    ]
    assert len(scores.clients) == 4
    for accuracy, samples, index in zip(scores.clients, scores.samples, taking_part, strict=True):
        member = planned.federation.members[index]
        most = torch.bincount(member.train.labels).argmax()
        assert accuracy == pytest.approx(float((member.test.labels == most).float().mean()))
        assert samples == len(member.train)
    assert scores.newcomers is not None


@pytest.mark.parametrize("name", LINES)
def test_every_line_is_a_share_of_right_answers(name: str):
    scores = compute_line(name, plan())
    assert all(0 <= value <= 1 for value in scores.clients)
    if name != "majority":
        assert np.mean(scores.clients) > np.mean(compute_line("majority", plan()).clients)


def test_lines_are_computed_on_one_thread_and_without_warnings(monkeypatch):
    from threadpoolctl import threadpool_info

    threads = []

    def fit(x, y):
        threads.extend(library["num_threads"] for library in threadpool_info())
        return fit_logistic(x, y)

    fit_logistic = suite_baselines._logistic
    monkeypatch.setattr(suite_baselines, "_logistic", fit)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compute_line("logistic", plan())
    assert threads
    assert set(threads) == {1}


def test_pooled_clients_train_on_the_samples_of_all_that_take_part():
    planned = plan()
    taking_part = [
        info.index for info in planned.federation.task.clients if info.index not in planned.newcomers
    ]
    own = [len(planned.federation.members[index].train) for index in taking_part]
    pooled = with_training_samples(planned.federation, "pooled", planned.newcomers)
    assert {len(member.train) for member in pooled.members} == {sum(own)}
    assert {info.samples for info in pooled.task.clients} == {sum(own)}
    for before, after in zip(planned.federation.members, pooled.members, strict=True):
        assert torch.equal(before.test.labels, after.test.labels)


def test_public_samples_are_added_to_each_clients_own():
    planned = plan()
    public = planned.federation.task.public
    assert public is not None
    more = with_training_samples(planned.federation, "public", planned.newcomers)
    for before, after in zip(planned.federation.members, more.members, strict=True):
        assert len(after.train) == len(before.train) + len(public)
    without = parse_experiment({**VALUES, "data": {**VALUES["data"], "public": 0.0}})
    with pytest.raises(PotluckError, match="set data.public"):
        with_training_samples(resolve(without).federation, "public", {})


def test_joined_samples_are_as_models_see_them():
    raw = Samples(torch.tensor([[1], [2]]), torch.tensor([0, 1]), transform=lambda x: x * 10)
    joined = join_samples([raw, raw.select(torch.tensor([1]))])
    assert (joined.x.tolist(), joined.labels.tolist()) == ([[10], [20], [20]], [0, 1, 1])


def test_smallest_tenth_by_hand():
    assert smallest_tenth([0.1, 0.5, 0.9], [30, 10, 20]) == 0.5
    assert smallest_tenth([0.1, 0.5, 0.9], [10, 10, 20]) == pytest.approx(0.3)  # as few samples count as well
    assert smallest_tenth([0.1] * 19 + [0.9], list(range(20, 0, -1))) == pytest.approx(0.5)  # two of twenty


def test_a_measured_variant_counts_clients_own_samples():
    """Pooled clients train on all samples; the tenth with the fewest is still by their own."""
    experiment = parse_experiment(VALUES)
    pooled, own = measure(Work(experiment, "pooled").text), measure(Work(experiment).text)
    assert pooled["details"]["client_samples"] == own["details"]["client_samples"]
    assert pooled["row"]["samples_per_job"] > own["row"]["samples_per_job"]
    assert Work(experiment, "pooled").digest == f"{Work(experiment).digest}-pooled"


def test_a_line_is_measured_like_a_run():
    measured = measure(Work(parse_experiment(VALUES), "ridge").text)
    row, details = measured["row"], measured["details"]
    assert row["accuracy"] == pytest.approx(float(np.mean(details["best_clients"])), abs=1e-4)
    assert row["worst_best"] == pytest.approx(min(details["best_clients"]), abs=1e-4)
    assert row["newcomers"] == row["newcomers_alone"]


def test_reference_of_every_task_trains_longer_than_the_methods():
    suite = find_suite("cpu")
    for task in suite.tasks:
        rounds = {
            name: suite.experiment(task, name, 0, suite.candidates(task, name)[0]).schedule.rounds
            for name in task.methods
        }
        public = any(needs_public_data(name) for name in task.methods)
        assert rounds["standalone"] >= (5 if public else 2) * rounds["standalone-same"]
        assert {"majority", "ridge", "logistic", "pooled-ridge"} <= rounds.keys()
        assert ("standalone-public" in rounds) == public


def test_a_variant_with_unknown_samples_is_one_sentence():
    text = (Path(__file__).parents[2] / "src/potluck/suites/cpu.toml").read_text()
    with pytest.raises(PotluckError, match="train = 'all' is none of own, public, pooled"):
        parse_suite("x", text.replace('train = "pooled"', 'train = "all"'))


def test_networks_that_stay_below_a_linear_model_are_named(tmp_path: Path):
    """Two clients of `flat` have 50 and 60 alone and 70 and 60 by ridge; the one of `deep` has 90 and 80."""
    results = Results(tmp_path, "made")
    add_rows(results, "one", "standalone", [0.7, 0.7], [[0.5, 0.9], [0.6, 0.9]])
    add_rows(results, "one", "ridge", [0.7, 0.7], [[0.7, 0.8], [0.6, 0.8]])
    add_rows(results, "one", "fedgh", [0.7, 0.7])
    for row in results.rows[:2]:
        results.details[row.experiment]["client_models"] = ["flat", "deep"]
    deep, flat = network_lines(results, "one")
    assert (deep.network, deep.clients, deep.alone, deep.missed) == ("deep", 2, pytest.approx(0.9), {})
    assert (flat.clients, flat.alone) == (2, pytest.approx(0.55))
    assert flat.missed == {"ridge": pytest.approx(0.65)}
    task = replace(find_suite("cpu").tasks[0], name="one", title="Made")
    text = baselines(results, [(task, summarise_task(results, "one"))])
    assert "but not with flat (55.0 against 65.0 of ridge)" in text
    assert "| Made | flat | 2 | 55.0 |  | 65.0 |  |" in text
    del results.details["one-standalone-0"]["client_models"]
    assert [line.clients for line in network_lines(results, "one")] == [1, 1]
