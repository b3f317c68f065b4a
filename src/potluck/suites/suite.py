"""A suite as data: its tasks, its methods and baselines with what is tuned of each, and its seeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError, unknown
from potluck.core.files import packaged_names, parse_toml, read_text
from potluck.experiment import Experiment, flat_settings, parse_experiment, put_setting
from potluck.suites.baselines import LINES, TRAIN
from potluck.suites.work import Work

Values = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """A method under a name of its own: other settings, or other training samples (`own`, `public` or `pooled`)."""

    method: str
    train: str
    settings: Values


@dataclass(frozen=True)
class Task:
    """An experiment without its method, and learning rates to try. `methods` are also variants and baselines."""

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
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tasks with their methods. With `tuning_seeds` every method is tuned on a grid: all learning rates of the task
    times all values of its option, each on every tuning seed for `tuning_share` of the rounds.

    Without tuning seeds every method takes the task's first learning rate. `page` says which page the results make.
    """

    name: str
    title: str
    page: str
    tasks: tuple[Task, ...]
    options: Mapping[str, tuple[str, tuple[Any, ...]]]
    fixed: Mapping[str, Values]
    variants: Mapping[str, Variant]
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    tuning_share: float
    tuning_wider: int
    """How many learning rates are added, one by one, while the best so far is at an end of those tried."""
    without_rate: tuple[str, ...]
    """Methods that take no gradient steps: their option alone is tuned, and they have no learning rate."""

    def task(self, name: str) -> Task:
        """Return the task of this name."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise unknown("task of the suite", name, [task.name for task in self.tasks])

    def is_tuned(self, name: str) -> bool:
        """Tell whether settings are chosen on validation samples; a baseline without training has none."""
        return bool(self.tuning_seeds) and name not in LINES

    def candidates(self, task: Task, name: str, added: Sequence[float] = ()) -> list[Values]:
        """Return the settings to try: the same learning rates for all, times values of what a method's paper tunes.

        `added` are learning rates beyond those of the task. Methods without a rate have the values alone.
        """
        if name in LINES:
            return [{}]
        if not self.tuning_seeds:
            return [{"training.lr": task.rates[0]}]
        rates: list[Values] = [{"training.lr": rate} for rate in (*task.rates, *added)]
        if name in self.without_rate:
            rates = [{}]
        if name not in self.options:
            return rates
        option, values = self.options[name]
        return [{**rate, f"method.{option}": value} for rate, value in itertools.product(rates, values)]

    def work(self, task: Task, name: str, seed: int, settings: Values, *, tuning: bool = False) -> Work:
        """Return one run of a method or baseline, or one trial of its tuning."""
        if name in LINES:
            return Work(self.experiment(task, name, seed, settings), name)
        variant = self.variants.get(name)
        return Work(
            self.experiment(task, name, seed, settings, tuning=tuning), variant.train if variant else "own"
        )

    def experiment(
        self, task: Task, name: str, seed: int, settings: Values, *, tuning: bool = False
    ) -> Experiment:
        """Return the experiment of a run or a trial; baselines without training use that of standalone."""
        values: Values = {"seed": seed, "engine": {"name": "serial", "checkpoint_every": 0}}
        variant = self.variants.get(name)
        changes = {
            **flat_settings(task.experiment),
            **flat_settings(variant.settings if variant else {}),
            **flat_settings(self.fixed.get(name, {})),
            **flat_settings(task.fixed.get(name, {})),
            "method.name": "standalone" if name in LINES else variant.method if variant else name,
            **settings,
        }
        for key, value in changes.items():
            put_setting(values, key.split("."), value)
        if tuning:
            rounds = int(values["schedule"]["rounds"])
            put_setting(values, ["schedule", "rounds"], max(1, round(self.tuning_share * rounds)))
            put_setting(values, ["evaluate", "newcomers"], 0.0)
        return parse_experiment(values).with_method_defaults()


def suite_names() -> list[str]:
    """Return the suites that come with Potluck."""
    return packaged_names("potluck.suites")


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
        seeds = tuple(values["seeds"])
        tasks = tuple(task for entry in values["task"] for task in _tasks(entry, groups, seeds))
        tuning = values.get("tuning", {})
        options = {
            method: (name, tuple(choices))
            for method, entry in tuning.get("options", {}).items()
            for name, choices in entry.items()
        }
        suite = Suite(
            name=name,
            title=values["title"],
            page=values.get("page", "tasks"),
            tasks=tasks,
            options=options,
            fixed=values.get("fixed", {}),
            variants={name: _variant(dict(entry)) for name, entry in values.get("variants", {}).items()},
            seeds=seeds,
            tuning_seeds=tuple(tuning.get("seeds", ())),
            tuning_share=float(tuning.get("share", 1.0)),
            tuning_wider=int(tuning.get("wider", 0)),
            without_rate=tuple(tuning.get("without_rate", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PotluckError(f"Suite {name!r} is not understood: {type(error).__name__} {error}.") from None
    for task in tasks:
        for method in task.methods:
            for settings in suite.candidates(task, method):
                suite.experiment(task, method, 0, settings)
    return suite


def _variant(entry: Values) -> Variant:
    train = entry.pop("train", "own")
    if train not in TRAIN:
        raise ValueError(f"train = {train!r} is none of {', '.join(TRAIN)}")
    return Variant(entry.pop("method"), train, entry.pop("settings", {}))


def _tasks(
    entry: Mapping[str, Any], groups: Mapping[str, list[str]], seeds: tuple[int, ...]
) -> Iterator[Task]:
    """Return a task, or where it has axes (each a table of labels and what they set) one for every combination."""
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
            tuple(entry.get("seeds", seeds)),
        )
