"""A suite as data: its tasks, its methods with what is tuned of each, its seeds and its budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError, unknown
from potluck.core.files import parse_toml, read_text
from potluck.experiment import Experiment, flat_settings, parse_experiment, put_setting

Values = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One question that every method is asked: an experiment without its method, and learning rates to try."""

    name: str
    title: str
    why: str
    experiment: Values
    rates: tuple[float, ...]
    methods: tuple[str, ...]
    axes: Mapping[str, str]
    """Where the task stands in a grid of tasks: the label on each axis."""
    fixed: Mapping[str, Values]
    """Settings of single methods on this task, beside those of the suite."""


@dataclass(frozen=True)
class Suite:
    """Tasks with their methods. Tuning: `trials` settings per method, on another seed, for a part of the rounds.

    Without trials every method takes the task's first learning rate. `page` says which page the results make.
    """

    name: str
    title: str
    page: str
    tasks: tuple[Task, ...]
    options: Mapping[str, tuple[str, tuple[Any, ...]]]
    fixed: Mapping[str, Values]
    seeds: tuple[int, ...]
    trials: int
    tuning_seed: int
    tuning_share: float

    def task(self, name: str) -> Task:
        """Return the task of this name."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise unknown("task of the suite", name, [task.name for task in self.tasks])

    def candidates(self, task: Task, method: str) -> list[Values]:
        """Return the settings to try, as many for every method: learning rates × values of what its paper tunes."""
        if method not in self.options or not self.trials:
            return [{"training.lr": rate} for rate in task.rates[: max(1, self.trials)]]
        name, values = self.options[method]
        middle = _middle(task.rates, self.trials // len(values))
        return [
            {"training.lr": rate, f"method.{name}": value}
            for rate, value in itertools.product(middle, values)
        ]

    def experiment(
        self, task: Task, method: str, seed: int, settings: Values, *, tuning: bool = False
    ) -> Experiment:
        """Return one run of the suite, or one trial of its tuning."""
        values: Values = {"seed": seed, "engine": {"name": "serial", "checkpoint_every": 0}}
        changes = {
            **flat_settings(task.experiment),
            **flat_settings(self.fixed.get(method, {})),
            **flat_settings(task.fixed.get(method, {})),
            "method.name": method,
            **settings,
        }
        for name, value in changes.items():
            put_setting(values, name.split("."), value)
        if tuning:
            rounds = int(values["schedule"]["rounds"])
            put_setting(values, ["schedule", "rounds"], max(1, round(self.tuning_share * rounds)))
            put_setting(values, ["evaluate", "newcomers"], 0.0)
        return parse_experiment(values).with_method_defaults()


def _middle(rates: Sequence[float], count: int) -> Sequence[float]:
    """Return the middle ones of a list."""
    start = max(0, (len(rates) - count) // 2)
    return rates[start : start + count]


def suite_names() -> list[str]:
    """Return the suites that come with Potluck."""
    files = [entry.name for entry in resources.files("potluck.suites").iterdir()]
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def find_suite(name: str) -> Suite:
    """Return a suite by its name, or from a file of your own."""
    if name.endswith(".toml"):
        path = Path(name)
        try:
            text = read_text(path)
        except OSError as error:
            raise PotluckError(f"Suite {name!r} cannot be read ({error.strerror}); check the path.") from None
        return parse_suite(path.stem, text)
    if name not in suite_names():
        raise unknown("suite", name, suite_names())
    return parse_suite(name, (resources.files("potluck.suites") / f"{name}.toml").read_text("utf-8"))


def parse_suite(name: str, text: str) -> Suite:
    """Return a suite from TOML; a mistake is one sentence."""
    try:
        values = parse_toml(text)
        groups: dict[str, list[str]] = values["methods"]
        tasks = tuple(task for entry in values["task"] for task in _tasks(entry, groups))
        tuning = values.get("tuning", {})
        options = {
            method: (name, tuple(choices))
            for method, entry in tuning.get("options", {}).items()
            for name, choices in entry.items()
        }
        suite = Suite(
            name,
            values["title"],
            values.get("page", "tasks"),
            tasks,
            options,
            values.get("fixed", {}),
            tuple(values["seeds"]),
            int(tuning.get("trials", 0)),
            int(tuning.get("seed", 100)),
            float(tuning.get("share", 0.5)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PotluckError(f"Suite {name!r} is not understood: {type(error).__name__} {error}.") from None
    for task in tasks:
        for method in task.methods:
            for settings in suite.candidates(task, method):
                suite.experiment(task, method, 0, settings)
    return suite


def _tasks(entry: Mapping[str, Any], groups: Mapping[str, list[str]]) -> Iterator[Task]:
    """Yield a task, or where it has axes (each a table of labels and what they set) one for every combination."""
    methods = tuple(method for group in entry["methods"] for method in groups.get(group, [group]))
    axes: Mapping[str, Mapping[str, Values]] = entry.get("axes", {})
    for labels in itertools.product(*axes.values()):
        place = dict(zip(axes, labels, strict=True))
        experiment: Values = {}
        for name, value in flat_settings(entry["experiment"]).items():
            put_setting(experiment, name.split("."), value)
        for axis, label in place.items():
            for name, value in flat_settings(axes[axis][label]).items():
                put_setting(experiment, name.split("."), value)
        name = "-".join([entry["name"], *labels])
        title = ", ".join([entry["title"], *(f"{axis} {label}" for axis, label in place.items())])
        yield Task(
            name,
            title,
            entry.get("why", ""),
            experiment,
            tuple(entry["rates"]),
            methods,
            place,
            entry.get("fixed", {}),
        )
