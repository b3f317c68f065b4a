"""The page on frozen pretrained networks says how its rows were made."""

from __future__ import annotations

from pathlib import Path

from generate.benchmark import pretrained
from potluck.suites.baselines import LINES
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


def test_the_page_compares_with_one_message_seed_by_seed(tmp_path: Path) -> None:
    text = pretrained.page(SUITE, Results(tmp_path, "pretrained", rows=rows(6)))
    assert text.startswith("# Pretrained networks: does federating pay?\n")
    (line,) = [line for line in text.splitlines() if line.startswith("| fd |") and line.count("|") == 5]
    assert line.split("|")[4].strip() == "+9.5 [+7.5, +11.5]"  # 72 - (60 … 65); t(5) 2.571 × 1.871 / √6
    assert "figures/pretrained-gains.svg" in text
    assert "figures/pretrained-bytes.svg" in text


def test_every_method_sees_the_same_learning_rates_and_one_without_steps_at_least_as_many_settings() -> None:
    for task in SUITE.tasks:
        for method in task.methods:
            if method not in LINES and method != "fedcgs":
                rates = {settings["training.lr"] for settings in SUITE.candidates(task, method)}
                assert rates == set(task.rates)
        settings = SUITE.candidates(task, "fedcgs")
        assert [list(values) for values in settings] == [["method.shrinkage"]] * 7
        assert len(settings) >= len(SUITE.candidates(task, "fedproto"))


def test_only_the_task_of_adapters_trains_more_than_heads() -> None:
    trained = {task.name: task.experiment["training"]["train"] for task in SUITE.tasks}
    assert trained.pop("agnews-lora") == "lora:4,lora:8,lora:32"
    assert set(trained.values()) == {"head"}
    task = SUITE.task("agnews-lora")
    for method in ("fedcgs", "standalone-head", "ridge", "logistic"):
        settings = SUITE.candidates(task, method)[0]
        assert SUITE.experiment(task, method, 0, settings).training.train == "head"
    assert SUITE.experiment(task, "fedavg", 0, {"training.lr": 0.001}).training.train == "lora:8"
