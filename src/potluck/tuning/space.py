"""What may be varied: settings by their dotted names, each with the values to choose from."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.files import parse_toml, read_text
from potluck.experiment import Experiment, apply_setting, dotted, parse_experiment, put

Values = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """The values of one setting: a few, or all between two numbers, evenly or by orders of magnitude."""

    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def corners(self) -> tuple[Any, ...]:
        """Values that must be allowed if the others are to be."""
        return self.values or (self.low, self.high)


@dataclass(frozen=True)
class Space:
    """Settings and their choices, in the order in which they were named."""

    choices: Mapping[str, Choice]

    @property
    def is_grid(self) -> bool:
        """Whether every setting has a few values that can all be tried."""
        return all(choice.values for choice in self.choices.values())

    def combinations(self) -> list[Values]:
        """Every combination of values, the last setting changing fastest."""
        lists = [choice.values for choice in self.choices.values()]
        return [dict(zip(self.choices, values, strict=True)) for values in itertools.product(*lists)]

    def check(self, values: Mapping[str, Any]) -> None:
        """Refuse a setting that is not there, and values that it may not have."""
        for name, choice in self.choices.items():
            for value in choice.corners:
                with_settings(values, {name: value})


def with_settings(values: Mapping[str, Any], settings: Mapping[str, Any]) -> Experiment:
    """An experiment with some of its settings replaced."""
    changed: Values = {}
    for name, value in {**dotted(values), **settings}.items():
        put(changed, name.split("."), value)
    return parse_experiment(changed).resolved()


def usual_space(method: str) -> Space:
    """The learning rate, and what the method's paper tunes; for a method of your own the learning rate alone."""
    text = (resources.files("potluck.tuning") / "spaces.toml").read_text("utf-8")
    tables = parse_toml(text)
    return parse_space({**tables["all"], **tables.get(method, {})}, f"of {method}")


def read_space(path: Path) -> Space:
    """A space from a file."""
    try:
        return parse_space(parse_toml(read_text(path)), str(path))
    except OSError as error:
        raise PotluckError(
            f"--space {str(path)!r} cannot be read ({error.strerror}); check the path."
        ) from None
    except ValueError as error:
        raise PotluckError(f"--space {str(path)!r} is not valid TOML: {error}.") from None


def grid_space(texts: Sequence[str]) -> Space:
    """A space out of `section.key=value,value` texts."""
    choices = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        words = [word for word in listed.split(",") if word.strip()]
        if not equals or not words:
            raise PotluckError(f"--grid {text!r} is not understood; write --grid section.key=value,value.")
        choices[name.strip()] = Choice(tuple(_value(name.strip(), word) for word in words))
    return Space(choices)


def _value(name: str, word: str) -> Any:
    values: Values = {}
    apply_setting(values, f"{name}={word}")
    return dotted(values)[name]


def parse_space(values: Mapping[str, Any], where: str) -> Space:
    """A space from nested values: lists of values, or tables with low and high."""
    choices = {name: _choice(name, entry, where) for name, entry in _flat(values).items()}
    if not choices:
        raise PotluckError(
            f"The space {where} is empty; name a setting, such as 'training.lr' = [0.01, 0.1]."
        )
    return Space(choices)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Choices by dotted names; a table with `low` is a choice itself."""
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
    known = {"low", "high", "log"}
    if not isinstance(entry, Mapping) or not {"low", "high"} <= entry.keys() <= known:
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
