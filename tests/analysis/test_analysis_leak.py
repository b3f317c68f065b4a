"""Leak analysis: hand-computed scores, and runs with known leaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import potluck
from potluck.analysis.leak import LeakScore, find_leaks
from potluck.analysis.leak.inference import auc_and_tpr, chance_tpr, infer_class_shares, score_class_shares
from potluck.core.errors import PotluckError
from potluck.kit import Head
from potluck.methods.fedgen import HeadAndCounts, HeadAndGenerator
from potluck.methods.fedproto import Prototypes
from potluck.runs.answers import KeptAnswer, read_answers
from support.kept_runs import kept_run


def head(*bias: float) -> Head:
    return Head({"weight": torch.zeros(len(bias), 2), "bias": torch.tensor(bias)})


def test_bias_changes_of_a_head_reveal_classes():
    answers = [
        KeptAnswer(0, 0, head(1.0, 1.0, 1.0), head(4.0, 2.0, 0.0)),
        KeptAnswer(0, 1, head(0.0, 0.0, 0.0), head(3.0, 1.0, -9.0)),
    ]
    shares = infer_class_shares(answers, 3)
    assert shares is not None
    assert shares[0].tolist() == [0.75, 0.25, 0.0]  # mean growth 3, 1 and −5


def test_labels_and_counts_are_described():
    rows, labels = torch.zeros(2, 4), torch.tensor([0, 2])
    alike = infer_class_shares([KeptAnswer(0, 0, Prototypes(rows, labels), Prototypes(rows, labels))], 3)
    counted = Prototypes(rows, labels, torch.tensor([3, 1]))
    exact = infer_class_shares([KeptAnswer(0, 0, counted, counted)], 3)
    assert alike is not None
    assert exact is not None
    assert alike[0].tolist() == [0.5, 0.0, 0.5]
    assert exact[0].tolist() == [0.75, 0.0, 0.25]
    once = HeadAndCounts(head(0.0, 0.0).weights, torch.tensor([9, 1]))
    later = HeadAndCounts(head(0.0, 5.0).weights)
    got = HeadAndGenerator(head(0.0, 0.0).weights)
    findings = infer_class_shares([KeptAnswer(0, 0, got, once), KeptAnswer(0, 1, got, later)], 2)
    assert findings is not None
    assert findings[0].tolist() == [0.9, 0.1]  # it was said in the first round


def test_leak_scores_are_compared_with_chance():
    counts = np.array([[10, 0], [5, 5], [0, 10]])
    exact = {0: np.array([1.0, 0.0]), 1: np.array([0.5, 0.5]), 2: np.array([0.0, 1.0])}
    scores = score_class_shares(exact, counts)
    assert scores["held"] == (1.0, pytest.approx(4 / 6))  # four of six pairs are held: always say yes
    assert scores["proportions"] == (1.0, pytest.approx((0.5 + 1.0 + 0.5) / 3))
    blind = score_class_shares(dict.fromkeys(range(3), np.array([0.5, 0.5])), counts)
    assert blind["held"][0] == blind["held"][1]
    assert blind["proportions"][0] == pytest.approx(blind["proportions"][1])


def test_areas_and_rates_by_hand():
    assert auc_and_tpr(np.array([3.0, 4.0]), np.array([1.0, 2.0])) == (1.0, 1.0)
    assert auc_and_tpr(np.array([1.0, 4.0]), np.array([2.0, 3.0])) == (0.5, 0.5)  # 4 is above all, 1 below
    assert auc_and_tpr(np.array([2.0, 2.0]), np.array([2.0, 2.0])) == (0.5, 0.0)
    assert auc_and_tpr(np.array([np.nan, 4.0]), np.array([2.0, 3.0]))[0] == 0.5


def test_the_rate_by_chance_knows_how_few_samples_it_rests_on():
    """The share of members above the highest of n equal others is 1 / (n + 1), not one hundredth."""
    assert [chance_tpr(n) for n in (1, 19, 99)] == [0.5, 0.05, 0.01]
    assert [chance_tpr(n) for n in (100, 299)] == [pytest.approx(2 / 101), pytest.approx(3 / 300)]
    rng = np.random.default_rng(0)
    drawn = [auc_and_tpr(rng.normal(size=40), rng.normal(size=19))[1] for _ in range(400)]
    assert np.mean(drawn) == pytest.approx(0.05, abs=0.015)


def leak_table(tmp_path: Path, method: str, **more: Any) -> dict[str, LeakScore]:
    return {leak.question: leak for leak in find_leaks(kept_run(tmp_path, method, **more)).scores}


def test_class_means_reveal_classes_and_single_samples(tmp_path: Path):
    leaks = leak_table(tmp_path, "fedproto", partition="dirichlet:0.3")
    held_class = leaks["does it hold a class? (share told right)"]
    assert held_class.score == 1.0 > held_class.chance
    alone = leaks["is the sample nearest to a class vector its own? (classes of 1)"]
    assert alone.score == 1.0  # the mean of one sample is that sample
    assert alone.chance < 0.2
    assert leaks["is a client recognised in its next answer?"].score == 1.0
    assert leaks["is a client recognised in its next answer?"].chance == pytest.approx(0.2)


def test_noise_takes_it_away_again(tmp_path: Path):
    pytest.importorskip("opacus")
    private = {"clip": 1.0, "noise_multiplier": 20.0, "hide_classes": True}
    leaks = leak_table(tmp_path, "fedproto", partition="dirichlet:0.3", privacy=private)
    held_class = leaks["does it hold a class? (share told right)"]
    assert held_class.score <= held_class.chance  # it names every class
    assert leaks["was a sample trained on? (AUC)"].score == pytest.approx(0.5, abs=0.15)


def test_weights_reveal_the_training_samples(tmp_path: Path):
    """A model that was trained long on few samples has a lower loss on them than on others."""
    leaks = leak_table(tmp_path, "fedavg", partition="iid", training={"epochs": 20})
    assert leaks["was a sample trained on? (AUC)"].score > 0.55
    assert "loss" in leaks["was a sample trained on? (AUC)"].way


def test_answers_are_kept_as_they_travelled(tmp_path: Path):
    run = potluck.run("fedgh", data={"limit": 100}, clients=2, rounds=2, models="small-mlp", engine="serial",
                      keep_answers=True, out=tmp_path / "run")  # fmt: skip
    from potluck.methods.fedgh import FedGH

    answers = read_answers(run.path, FedGH())
    assert [(answer.client, answer.job) for answer in answers] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    sizes = [path.stat().st_size for path in (run.path / "answers").glob("*-answer.safetensors")]
    assert sum(sizes) == run.summary["bytes_up"]
    assert torch.equal(answers[0].message.weights["bias"], answers[2].message.weights["bias"])


def test_the_command_prints_and_writes_the_scores(potluck: Any, tmp_path: Path):
    words = ("--clients", "3", "--rounds", "2", "--models", "small-mlp", "--set", "data.limit=150", "-q")
    potluck("run", "fedhe", *words, "--engine", "serial", "--keep-answers", "--out", "run")
    code, out, _ = potluck("leak", "run")
    assert code == 0
    assert "does it hold a class?" in out
    stored = json.loads((tmp_path / "run" / "leaks.json").read_text())
    assert {"question", "score", "chance", "way", "cases"} == stored["scores"][0].keys()


def test_leak_command_says_why_no_pictures_were_made(potluck: Any):
    words = ("--clients", "3", "--rounds", "1", "--models", "small-mlp", "--set", "data.limit=150", "-q")
    potluck("run", "fedmd", *words, "--engine", "serial", "--keep-answers", "--out", "run")
    code, out, _ = potluck("leak", "run")
    assert code == 0
    assert "No pictures were made: nothing that was sent is a vector of one class." in out


def test_run_without_kept_answers_names_the_setting(tmp_path: Path):
    run = potluck.run("fedgh", data={"limit": 100}, clients=2, rounds=1, models="small-mlp", engine="serial",
                      out=tmp_path / "run")  # fmt: skip
    with pytest.raises(PotluckError, match="has no stored answers; repeat the run with --keep-answers"):
        find_leaks(run.path)
