"""Define the search space: settings by dotted name and their candidate values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.files import parse_toml, read_text
from potluck.experiment import Experiment, apply_setting, flat_settings, parse_experiment, put_setting
from potluck.runs.resolve import resolve

SPLIT = "6:2:2"
"""Default split of clients' rows into training, validation and test samples."""


def prepare_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the experiment's values for trials, validated, and the method's name."""
    flat = flat_settings(values)
    fixed = {"data.split": SPLIT} if "data.split" not in flat else {}
    fixed |= {"evaluate.select": "validation", "engine.name": "serial"}
    for name in ("engine.name", "evaluate.select"):
        if flat.get(name) not in (None, fixed[name], "auto"):
            raise PotluckError(
                f"{name} = {flat[name]!r} is not supported by tune; trials run with {fixed[name]!r}."
            )
    result: dict[str, Any] = {}
    for name, value in {**flat, **fixed}.items():
        put_setting(result, name.split("."), value)
    experiment: Experiment = resolve(parse_experiment(result), measure=False).experiment
    return result, experiment.method.name


def choose_space(method: str, file: Path | None, grid: Sequence[str]) -> Space:
    """Return the space of a file, of a grid, or the default of the method."""
    if file is not None and grid:
        raise PotluckError("--space and --grid cannot be combined; pass one of them.")
    if grid:
        return grid_space(grid)
    return default_space(method) if file is None else read_space(file)


Values = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """Values of one setting: a list, or a range on a linear or logarithmic scale.

    `study.log` contains the fields' names, so they stay.
    """

    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def corners(self) -> tuple[Any, ...]:
        """Return the values to validate: all of a list, or the ends of a range."""
        return self.values or (self.low, self.high)


@dataclass(frozen=True)
class Space:
    """Settings and their choices, in the order given."""

    choices: Mapping[str, Choice]

    @property
    def is_grid(self) -> bool:
        """Return whether every setting is a list of values."""
        return all(choice.values for choice in self.choices.values())

    def combinations(self) -> list[Values]:
        """Return every combination of values, the last setting changing fastest."""
        lists = [choice.values for choice in self.choices.values()]
        return [dict(zip(self.choices, values, strict=True)) for values in itertools.product(*lists)]

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise an error for an unknown setting or an invalid value."""
        for name, choice in self.choices.items():
            for value in choice.corners:
                with_settings(values, {name: value})


def with_settings(values: Mapping[str, Any], settings: Mapping[str, Any]) -> Experiment:
    """Return an experiment with some of its settings replaced."""
    changed: Values = {}
    for name, value in {**flat_settings(values), **settings}.items():
        put_setting(changed, name.split("."), value)
    return parse_experiment(changed).with_method_defaults()


def default_space(method: str) -> Space:
    """Return the learning rate and what the method's paper tunes; for other methods the learning rate alone."""
    text = (resources.files("potluck.tuning") / "spaces.toml").read_text("utf-8")
    tables = parse_toml(text)
    return parse_space({**tables["all"], **tables.get(method, {})}, f"of {method}")


def read_space(path: Path) -> Space:
    """Read a space from a TOML file."""
    try:
        return parse_space(parse_toml(read_text(path)), str(path))
    except OSError as error:
        raise PotluckError(
            f"--space {str(path)!r} cannot be read ({error.strerror}); check the path."
        ) from None
    except ValueError as error:
        raise PotluckError(f"--space {str(path)!r} is not valid TOML: {error}.") from None


def grid_space(texts: Sequence[str]) -> Space:
    """Make a grid from `section.key=value,value` texts."""
    choices = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        values = [value for value in listed.split(",") if value.strip()]
        if not equals or not values:
            raise PotluckError(f"--grid {text!r} is not valid; write --grid section.key=value,value.")
        choices[name.strip()] = Choice(tuple(_value(name.strip(), value) for value in values))
    return Space(choices)


def _value(name: str, text: str) -> Any:
    values: Values = {}
    apply_setting(values, f"{name}={text}")
    return flat_settings(values)[name]


def parse_space(values: Mapping[str, Any], where: str) -> Space:
    """Make a space from nested values: lists of values, or tables with low and high."""
    choices = {name: _choice(name, entry, where) for name, entry in _flat(values).items()}
    if not choices:
        raise PotluckError(
            f"The space {where} is empty; name a setting, such as 'training.lr' = [0.01, 0.1]."
        )
    return Space(choices)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten choices to dotted names; a table with `low` or `high` is a choice."""
    flat: dict[str, Any] = {}
    for name, entry in values.items():
        if isinstance(entry, Mapping) and not {"low", "high"} & entry.keys():
            flat |= _flat(entry, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = entry
    return flat


def _choice(name: str, entry: Any, where: str) -> Choice:
    if isinstance(entry, list) and entry:
        return Choice(tuple(entry))
    keys = {"low", "high", "log"}
    if not isinstance(entry, Mapping) or not {"low", "high"} <= entry.keys() <= keys:
        raise PotluckError(
            f"{name} in the space {where} is {entry!r}; write a list of values, or "
            "{ low = 0.01, high = 0.3, log = true }."
        )
    low, high, log = entry["low"], entry["high"], bool(entry.get("log", False))
    if not all(isinstance(end, int | float) for end in (low, high)) or not low < high or (log and low <= 0):
        raise PotluckError(
            f"{name} in the space {where} goes from {low!r} to {high!r}; low must be a number below high"
            f"{', and above 0 where log is true' if log else ''}."
        )
    return Choice((), low, high, log, isinstance(low, int) and isinstance(high, int))
