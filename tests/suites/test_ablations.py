"""Ablations of single options: tables and page texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from generate.benchmark.ablations import Line, is_default, lines, methods, page, table
from potluck.suites.statistics import REFERENCE
from potluck.suites.store import Results
from potluck.suites.suite import find_suite
from potluck.suites.work import Work, measure
from tests.support.suites import make_row

ROOT = Path(__file__).parents[2]
SUITE = find_suite("ablations")


def results(tmp_path: Path, gains: dict[str, float]) -> Results:
    """Settings of pFedAFM by their distance to the default, which all ten clients of both seeds have."""
    stored_results = Results(tmp_path, "ablations")
    for seed in (0, 1):
        for task, gain in {"pfedafm-alpha_lr 1": 0.0, **gains}.items():
            method = REFERENCE if task == "alone" else "pfedafm"
            row = make_row(task, method, seed, 0.5 + gain)
            clients = [
                0.4 + 0.02 * number + gain + 0.001 * (number % 2) * (gain != 0) for number in range(10)
            ]
            stored_results.rows.append(row)
            stored_results.details[row.experiment] = {
                "clients": clients,
                "last": {"validation": 0.7 - gain, "received": 0.6},
                "notes": {"alpha": [[1, 1.0], [2, 0.25 + 0.5 * seed]]},
            }
    return stored_results


@pytest.mark.parametrize("method", methods(SUITE))
def test_one_setting_of_each_method_is_the_default_one(method: str):
    tasks = [task for task in SUITE.tasks if method in task.methods]
    assert sum(is_default(task) for task in tasks) == 1
    assert all(task.methods == (method,) for task in tasks)


def test_a_table_compares_with_the_default_setting(tmp_path: Path):
    results_found = results(
        tmp_path, {"pfedafm-alpha_lr 0.1": -0.2, "pfedafm-alpha_lr 0.01": 0.0, "alone": 0.1}
    )
    text = table(SUITE, results_found, "pfedafm")
    assert (
        "| setting | validation | test | against default | below | as received | mean of α at the end |"
        in text
    )
    assert (
        "| alpha_lr 1 (default) | 70.0 ± 0.0 | 50.0 ± 0.0 |  | 100% | 60.0 ± 0.0 | 0.5 |" in text
    )  # 0.25 and 0.75
    assert (
        "| alpha_lr 0.1 | 90.0 ± 0.0 | 30.0 ± 0.0 | **-20.0 [-20.0, -20.0]** | 100% | 60.0 ± 0.0 | 0.5 |"
        in text
    )
    assert "| alpha_lr 0.01 | 70.0 ± 0.0 | 50.0 ± 0.0 | +0.0 [+0.0, +0.0] | 100% | 60.0 ± 0.0 | 0.5 |" in text
    assert (
        "| standalone training | 60.0 ± 0.0 | 60.0 ± 0.0 | **+10.0 [+10.0, +10.0]** |  | 60.0 ± 0.0 |  |"
        in text
    )
    rendered = " ".join(text.split())
    assert "Best on validation: alpha_lr 0.1, 20.0 points ahead of the default setting." in rendered
    assert "on clients' test samples: alpha_lr 0.1 (-20.0); standalone training (+10.0)." in rendered


def test_equals_leave_the_choice_where_it_is(tmp_path: Path):
    rendered = " ".join(table(SUITE, results(tmp_path, {"pfedafm-alpha_lr 0.01": 0.0}), "pfedafm").split())
    assert (
        "Best on validation: the default setting. Different by more than chance from the default setting on clients' test samples: none."
        in rendered
    )
    assert "Not measured yet; run `potluck benchmark ablations --methods fedtgp --resume`" in table(
        SUITE, results(tmp_path, {}), "fedtgp"
    )
    assert (
        page(SUITE, results(tmp_path, {})).count("\n## ") == len(methods(SUITE)) + 1
    )  # and where they come from


def test_a_run_keeps_its_last_accuracies_under_every_protocol():
    task = SUITE.task("fedapen-steadiness 10")
    quick = {"data.limit": 200, "partition.clients": 2, "schedule.rounds": 2, "evaluate.every": 1}
    experiment = SUITE.experiment(task, "fedapen", 0, {"training.lr": 0.1, **quick})
    last = measure(Work(experiment).text)["details"]["last"]
    assert last.keys() == {"validation", "local", "received"}
    assert all(0 <= value <= 1 for value in last.values())


def stored(method: str) -> dict[str, Line]:
    """A method's lines out of the results that are kept, by setting."""
    by_setting = {
        line.setting: line for line in lines(SUITE, Results.read(ROOT / "results", "ablations"), method)
    }
    if len(by_setting) < 2:
        pytest.skip("no results are stored")
    return by_setting


def test_the_page_on_fedapen_is_right_about_few_samples():
    """The ensemble as received gains by a steady λ; what a client tests after training does not tell them apart."""
    by_setting = stored("fedapen")
    for setting in ("steadiness 10", "solve sgd"):
        gains = np.subtract(by_setting[setting].received, by_setting["steadiness 0"].received)
        assert sum(gains > 0.02) == 2
        assert abs(gains).min() < 0.01
        assert not by_setting[setting].significant


def test_fedtgp_page_is_right_about_its_weight_and_predictor():
    by_setting = stored("fedtgp")
    assert all(
        abs(by_setting[name].gain.mean) < 0.02 for name in ("prototype_weight 0.01", "prototype_weight 1")
    )
    far = ("prototype_weight 10", "prediction proto_all", "prediction proto_all, prototype_weight 10")
    assert all(by_setting[name].gain.mean < -0.05 and not by_setting[name].significant for name in far)


@pytest.mark.parametrize(("method", "distinguished"), [("fedl2g-l", set()), ("fedl2g-f", {"quiz kept"})])
def test_fedl2g_pages_are_right_about_settings_distinguished_from_the_default(
    method: str, distinguished: set[str]
):
    by_setting = stored(method)
    assert {name for name, line in by_setting.items() if line.significant} == distinguished
    assert all(by_setting[name].gain.mean < 0 for name in ("quiz kept", "guide_weight 1", "warm_up 5"))


def test_the_page_on_pfedafm_is_right_about_its_mixing_weights():
    by_setting = stored("pfedafm")
    alpha = {name: np.mean(line.note) for name, line in by_setting.items() if line.note}
    assert min(alpha["alpha_lr 0.001"], alpha["alpha_lr 0.01"]) > 0.999
    assert alpha["alpha_decay 0.01"] < 0.5 < alpha["alpha_lr 1"] < 0.99
    assert not any(line.significant for line in by_setting.values())
    chosen = max(
        (line for line in by_setting.values() if line.note), key=lambda line: np.mean(line.validation)
    )
    assert chosen.default
