"""The page on frozen pretrained networks says how its rows were made."""

from __future__ import annotations

from pathlib import Path

from generate.benchmark import pretrained
from potluck.suites.store import Results
from potluck.suites.suite import find_suite
from support.suites import make_row

SUITE = find_suite("pretrained")


def rows(seeds: int) -> list:
    made = []
    for seed in range(seeds):
        made += [
            make_row("cifar10-labels", "standalone", seed, 0.7),
            make_row("cifar10-labels", "fedcgs", seed, 0.6 + seed / 100),
            make_row("cifar10-labels", "fd", seed, 0.72),
        ]
    return made


def test_the_page_says_that_nothing_is_tuned_and_compares_with_one_message(tmp_path: Path) -> None:
    text = pretrained.page(SUITE, Results(tmp_path, "pretrained", rows=rows(6)))
    assert text.startswith("# Pretrained networks: does federating pay?\n")
    assert "Nothing is tuned" in text
    assert "Every method sees" not in " ".join(text.split())
    (line,) = [line for line in text.splitlines() if line.startswith("| fd |") and line.count("|") == 5]
    assert line.split("|")[4].strip() == "+9.5"  # 72 against the mean of 60 to 65
    assert "figures/pretrained-gains.svg" in text


def test_methods_of_one_learning_rate_are_one_candidate_each() -> None:
    for task in SUITE.tasks:
        assert [len(SUITE.candidates(task, name)) for name in task.methods] == [1] * len(task.methods)
        assert all(task.experiment["training"]["train"] == "head" for task in SUITE.tasks)
