"""The page on leaks: scores above chance with every seed, by payload, and the effect of noise."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from generate.benchmark import page_text, write_page
from generate.benchmark.leaks import ALIKE, KINDS, NOISE, PLAIN, Score, scores
from potluck.analysis.leak import LeakFindings, LeakScore, Reconstruction
from potluck.suites.store import Results
from potluck.suites.suite import find_suite
from potluck.suites.work import Work, measure
from tests.support.suites import make_row

ROOT = Path(__file__).parents[2]
HELD = "does it hold a class? (share told right)"
SENDER = "is a client recognised in its next answer?"
PICTURE = "inverted with the extractor, classes of 1: PSNR in dB"


def stored(tmp_path: Path) -> Results:
    """fedproto tells classes with both seeds and the sender with one of two; with noise it tells nothing."""
    stored_results = Results(tmp_path, "leaks")
    values: dict[str, list[dict[str, tuple[float, float]]]] = {
        "plain": [
            {HELD: (0.96, 0.75), SENDER: (0.3, 0.1), PICTURE: (17.4, 14.0)},
            {HELD: (0.94, 0.75), SENDER: (0.1, 0.1), PICTURE: (17.6, 14.0)},
        ],
        "noise-hidden": [
            {HELD: (0.7, 0.75), PICTURE: (12.0, 14.0)},
            {HELD: (0.75, 0.75), PICTURE: (12.0, 14.0)},
        ],
    }
    for task, seeds in values.items():
        for seed, each in enumerate(seeds):
            row = replace(
                make_row(task, "fedproto", seed, 0.0),
                final_accuracy=0.8 if task == "plain" else 0.5,
                settings="{}",
            )
            stored_results.rows.append(row)
            leaks = [LeakScore(question, *pair, "by hand", 1) for question, pair in each.items()]
            shown = [Reconstruction(0, 4, 1, {"its mean picture": torch.zeros(1, 8, 8)})]
            details: dict[str, Any] = {"clients": [], "leaks": LeakFindings(leaks, shown).stored()}
            if task != "plain":
                details["privacy"] = {"epsilon": 3.4 + seed}
            stored_results.details[row.experiment] = details
    return stored_results


def test_cells_have_the_spread_and_the_chance_and_are_bold_where_every_seed_leaks(tmp_path: Path):
    text = page_text(find_suite("leaks"), stored(tmp_path))
    shown = HELD.replace("told right", "inferred correctly")
    assert f"| {shown} | **0.95** ± 0.01 (0.75) | 0.72 ± 0.04 (0.75) |" in text
    assert f"| {SENDER} | 0.20 ± 0.14 (0.10) |  |" in text  # not above chance with the second seed
    assert (
        "| inverted with the extractor, classes of 1 | **17.5** ± 0.1 (14.0) |  | 12.0 ± 0.0 (14.0) |  |"
        in text
    )
    assert "Accuracy of clients: 80.0 % without noise, 50.0 % with it." in text
    assert "ε = 3.4 to 4.4" in text


def test_evidence_and_counter_evidence_follow_from_the_numbers(tmp_path: Path):
    text = page_text(find_suite("leaks"), stored(tmp_path))
    assert "* Without noise, inferred: which classes; not inferred: the sender." in text
    assert "* With noise, nothing is inferred; not inferred: which classes." in text
    assert (
        "* Pictures without noise, beside the typical one of the class: with the extractor +3.5 dB (classes of 1)."
        in text
    )
    assert (
        "* Pictures with noise, beside the typical one of the class: with the extractor -2.0 dB (classes of 1)."
        in text
    )
    assert "{{" not in text


def test_a_leak_is_an_interval_above_chance():
    """Two seeds: t(0.975; 1) = 12.7, so gains of 0.19 and 0.21 (0.2 ± 0.13) leak, and 0.1 and 0.2 do not."""
    assert Score((0.69, 0.71), (0.5, 0.5)).leaks
    assert not Score((0.6, 0.7), (0.5, 0.5)).leaks
    assert Score((0.6, 0.6), (0.5, 0.5)).leaks
    assert not Score((0.6,), (0.5,)).leaks


def test_statements_of_the_page_hold_in_the_stored_rows():
    """The page's sentences, one by one; where one fails, the data have changed and the words must follow."""
    results = Results.read(ROOT / "results", "leaks")
    plain = {method: scores(results, PLAIN, method) for kind in KINDS.values() for method in kind}
    noise = {method: scores(results, NOISE, method) for method in plain}
    for method in ("fedproto", "fedgh", "fedhe"):
        assert set(plain[method][HELD].scores) == {1.0}
    for method in ("fedproto", "fedgh"):
        seen = {
            question: score
            for question, score in plain[method].items()
            if question.startswith("inverted with the")
        }
        assert len(seen) == 8
        assert all(score.leaks for score in seen.values())
        assert set(
            plain[method]["is the sample nearest to a class vector its own? (classes of 1)"].scores
        ) == {1.0}
        assert plain[method][PICTURE].gain > plain["fedhe"][PICTURE].gain + 1
    for table in plain.values():
        blind = [score for question, score in table.items() if "without it, classes" in question]
        assert all(score.gain < 0 for score in blind)
        assert table[SENDER].leaks
    alike = scores(results, ALIKE, "fedproto")
    blind = {question: score for question, score in alike.items() if "without it, classes" in question}
    assert all(plain["fedproto"][question].gain < score.gain < 0 for question, score in blind.items())
    assert not alike["inverted without it, nearest of two or more samples: PSNR in dB"].leaks
    for method in ("lg-fedavg", "fedavg"):
        assert plain[method][HELD].gain < 0 < plain[method]["in what proportions? (overlap)"].gain
        rest = [
            score
            for question, score in plain[method].items()
            if re.search("extractor, classes of [26].*PSNR", question)
        ]
        assert all(score.gain < 0 for score in rest)
        assert plain[method][PICTURE].gain > 0
    noisy_leaks = [score.leaks for table in noise.values() for score in table.values()]
    before = [score.leaks for table in plain.values() for score in table.values()]
    assert sum(noisy_leaks) < 0.1 * len(noisy_leaks) < 0.3 * len(before) < sum(before)
    costs = {method: _cost(results, method) for method in plain}
    assert max(costs["fedproto"], costs["fedgh"]) < min(costs["lg-fedavg"], costs["fedavg"])
    assert max(costs, key=lambda method: costs[method]) == "fedavg"


def _cost(results: Results, method: str) -> float:
    """Points of accuracy that noise takes, in the mean over seeds."""
    costs = [
        [row.final_accuracy for row in results.rows if row.method == method and row.task in tasks]
        for tasks in (PLAIN, NOISE)
    ]
    return sum(costs[0]) / len(costs[0]) - sum(costs[1]) / len(costs[1])


def test_the_picture_is_that_of_the_first_run(tmp_path: Path):
    write_page(find_suite("leaks"), stored(tmp_path), tmp_path / "leaks.md")
    assert "class 4" in (tmp_path / "figures" / "leaks.svg").read_text()


def test_every_run_of_the_suite_keeps_its_answers_and_most_protect_them():
    suite = find_suite("leaks")
    for task in suite.tasks:
        for method in task.methods:
            experiment = suite.experiment(task, method, 0, suite.candidates(task, method)[0])
            assert experiment.engine.keep_answers
            assert bool(experiment.privacy.noise_multiplier) == task.name.startswith("noise")
            assert experiment.models.same_init == (task.name == "alike")


def test_measured_runs_with_stored_answers_are_checked_for_leaks():
    suite = find_suite("leaks")
    experiment = suite.experiment(
        suite.task("plain"), "fedproto", 0, {"data.limit": 150, "schedule.rounds": 1, "partition.clients": 3}
    )
    leaks = measure(Work(experiment).text)["details"]["leaks"]
    assert {score["question"] for score in leaks["scores"]} >= {HELD}
    assert leaks["pictures"]
    assert (
        "leaks" not in measure(Work(experiment.with_settings({"engine.keep_answers": False})).text)["details"]
    )
