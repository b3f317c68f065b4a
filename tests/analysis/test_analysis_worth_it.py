"""The prediction of gains: rules fitted by hand, verdicts, and that the shipped rules are those of the stored rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import potluck
from generate import calibration
from generate import worth_it as page
from potluck.analysis.worth_it import (
    PRIOR,
    Case,
    ClientFacts,
    Prediction,
    Rule,
    counted_facts,
    fit_rule,
    rules_text,
    run_facts,
    score_rule,
    shipped_rules,
    split_tasks,
)
from potluck.suites.store import Results
from potluck.suites.suite import find_suite
from tests.support.suites import add_rows

TINY: dict[str, Any] = {
    "clients": 3, "rounds": 2, "epochs": 1, "data": {"name": "digits", "limit": 120, "split": "2:1:1"},
    "models": "small-mlp", "engine": "serial",
}  # fmt: skip


def cases(task: str, gains: dict[int, float]) -> list[Case]:
    return [Case(task, ClientFacts(samples), gain) for samples, gain in gains.items()]


def test_rule_fits_its_cases_with_equal_weight_per_task():
    """Two points of gain per factor of ten: 0.02 · log10(samples) - 0.03; a task's many clients do not outvote it."""
    exact = cases("a", {10: -0.01, 100: 0.01}) + cases("b", {1000: 0.03, 10000: 0.05})
    rule = fit_rule("samples", exact)
    assert rule.weights == pytest.approx((-0.03, 0.02))
    assert (rule.below, rule.above) == pytest.approx((0.0, 0.0), abs=1e-12)
    single, many = cases("a", {10: 0.0}), cases("b", {10: 0.1}) * 9
    assert fit_rule("samples", single + many).predict(ClientFacts(10)).gain == pytest.approx(0.05)


def test_interval_covers_errors_on_held_out_tasks():
    """Without task b the rule expects 0 of its clients, which gain 0.1; without task a the other way round."""
    rule = fit_rule("samples", cases("a", {10: 0.0, 100: 0.0}) + cases("b", {10: 0.1, 100: 0.1}))
    assert (rule.below, rule.above) == pytest.approx((-0.1, 0.1))


@pytest.mark.parametrize(("low", "high", "verdict"), [(0.01, 0.1, "join"), (-0.2, -0.1, "do not join"), (-0.1, 0.1, "cannot tell"), (0.0, 0.1, "cannot tell")])  # fmt: skip
def test_verdict_needs_an_interval_on_one_side_of_zero(low: float, high: float, verdict: str):
    assert Prediction((low + high) / 2, low, high).verdict == verdict


def test_early_difference_of_few_validation_samples_says_little():
    rule = Rule("early", (0.0, 1.0), 0.0, 0.0)
    assert rule.predict(ClientFacts(20, validation=10, gained=3, lost=1)).gain == pytest.approx(
        2 / (10 + PRIOR)
    )
    assert rule.predict(ClientFacts(20)).gain == 0


def test_scores_count_calls_and_losses():
    rule = Rule("samples", (-0.3, 0.1), -0.05, 0.05)  # expects -0.2, -0.1, 0 and 0.1
    score = score_rule(rule, cases("a", {10: -0.22, 100: 0.02, 1000: 0.01, 10000: 0.3}))
    assert (score.calls, score.right_calls, score.leaning, score.right_leaning) == (2, 1, 2, 1)
    assert (score.losses, score.coverage) == (0.25, 0.5)
    assert score.rank_correlation == pytest.approx(0.8)


def test_tasks_are_split_by_name_alone():
    all_cases = [Case(task, ClientFacts(1), 0.0) for task in "dbca"]
    fitted, held_out = split_tasks(all_cases)
    assert ({case.task for case in fitted}, {case.task for case in held_out}) == ({"a", "c"}, {"b", "d"})


def test_shipped_rules_are_those_of_the_stored_rows():
    assert page.SHIPPED.read_text(encoding="utf-8") == page.shipped_text(page.calibrate())
    rules = shipped_rules()
    assert rules_text(rules) == page.SHIPPED.read_text(encoding="utf-8")
    assert rules["before"][1].cases > 1000


def test_facts_of_a_run_are_its_counts_and_its_evidence(tmp_path: Path):
    run = potluck.run("fedproto", **TINY, safeguard="select", out=tmp_path / "run")
    facts = run_facts(run)
    rows = [row for row in run.client_rows() if row.get("train_samples")]
    first = {row["name"]: row for row in reversed(rows)}
    assert {row["round"] for row in first.values()} == {
        1
    }  # of two rounds the first counts, as in the calibration
    for index, (name, client_facts) in enumerate(facts.items()):
        counts = run.summary["class_counts"][index]
        assert (client_facts.samples, client_facts.classes, client_facts.of_classes, client_facts.largest) == (
            sum(counts), sum(count > 0 for count in counts), 10, max(counts),
        )  # fmt: skip
        assert (client_facts.gained, client_facts.lost, client_facts.validation) == tuple(
            first[name][key] for key in ("validation_gained", "validation_lost", "validation_samples")
        )
    plain = potluck.run("fedproto", **TINY, out=tmp_path / "plain")
    assert [client_fact.gained for client_fact in run_facts(plain).values()] == [None] * 3
    assert counted_facts([0, 3, 2]) == ClientFacts(5, 2, 3, 3)


def test_command_on_an_experiment_a_pilot_and_a_run(potluck: Any, tmp_path: Path):
    small = ["--clients", "2", "--epochs", "1", "--set", "data.limit=60", "--set", "data.split=2:1:1"]
    code, out, err = potluck("worth-it", "fedgh", *small)
    assert (code, err) == (0, "")
    assert "client-1" in out
    assert "cannot tell" in out
    assert "of expected and actual gain" in out
    rows = [line for line in out.splitlines() if line.startswith("client-")]
    assert len(rows) == 2
    assert all(" to " in line and line.endswith("cannot tell") for line in rows)  # no cell is broken
    code, out, err = potluck("worth-it", "fedgh", *small, "--try-rounds", "1")
    assert (code, err) == (0, "")
    assert " of 8" in out or " of 7" in out
    assert potluck("run", "fedgh", *small, "--rounds", "1", "--out", str(tmp_path / "run"), "-q")[0] == 0
    code, out, err = potluck("worth-it", str(tmp_path / "run"))
    assert (code, err) == (0, "")
    for words, sentence in (
        ([tmp_path / "run", "fedgh"], "cannot be mixed"),
        ([tmp_path / "run", "--try-rounds", "1"], "have no effect on runs"),
        (["fedgh", "fedavg"], "is no run folder"),
        (["standalone"], "method.name = 'standalone' is training alone; name the federated method to join."),
        ([tmp_path / "none"], "is neither a method nor an experiment file (.toml); check the path."),
    ):
        code, _, err = potluck("worth-it", *map(str, words))
        assert (code, sentence in err) == (2, True), err


def test_stored_calibration_data_have_a_line_per_client():
    lines = (page.ROOT / "results" / "worth-it.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].split(",")[:7] == list(page.FACTS)
    assert json.loads(page.SHIPPED.read_text(encoding="utf-8"))["before"]["score"]["cases"] == len(
        split_tasks(list(page.before_cases()))[1]
    )


def test_calibration_needs_rows_of_two_tasks(tmp_path: Path):
    suite, results = find_suite("cpu"), Results(tmp_path / "results", "cpu")
    for name in ("standalone", "ridge"):
        add_rows(results, "digits-labels", name, [0.5])
        add_rows(results, "digits-depth", name, [0.5])
    assert calibration.calibration_tasks(suite, results) == []  # no federated method
    add_rows(results, "digits-labels", "fedgh", [0.5])
    assert [task.name for task in calibration.calibration_tasks(suite, results)] == ["digits-labels"]
    results.write()
    with pytest.raises(SystemExit, match="of the suite cpu only digits-labels has rows of standalone"):
        calibration.main(tmp_path)
    assert not (tmp_path / "results" / "worth-it.csv").exists()
    add_rows(results, "digits-depth", "fedgh", [0.5])
    assert len(calibration.calibration_tasks(suite, results)) == 2


def test_clients_of_the_present_suite_are_dealt_again():
    """A line per client of a stored seed; baselines are no methods, and gains are differences of stored accuracies."""
    suite, results = find_suite("cpu"), Results.read(page.ROOT / "results", "cpu")
    task = suite.task("digits-labels")
    rows = list(calibration.task_rows(suite, results, task, 0))
    stored = {
        row.method: results.details[row.experiment]["clients"]
        for row in results.rows
        if (row.task, row.seed) == (task.name, 0)
    }
    assert len(rows) == len(stored["standalone"])
    assert not {"ridge", "majority", "standalone-same"} & rows[0].keys()
    assert float(rows[0]["fedgh"]) == pytest.approx(stored["fedgh"][0] - stored["standalone"][0], abs=1e-4)


def test_the_page_says_that_the_calibration_rows_are_of_a_withdrawn_suite(tmp_path: Path):
    (tmp_path / "results").mkdir()
    file = tmp_path / "results" / "worth-it.csv"
    head = ",".join([*page.FACTS, "fedgh"])
    file.write_text(f"{head}\nfashion-old,0,0,9,2,10,5,0.1\n")
    assert "1 methods in 1 seeds of 1 tasks of an earlier suite `cpu`" in page.source_sentence(tmp_path)
    file.write_text(f"{head}\ndigits-labels,0,0,9,2,10,5,0.1\n")
    assert page.source_sentence(tmp_path).endswith("of the suite `cpu`.")
