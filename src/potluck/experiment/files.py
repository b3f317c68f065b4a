"""Experiments from files, and single settings put on top of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.files import parse_toml, read_text

SHORT_FORMS = {
    "data": "data.name",
    "data_root": "data.root",
    "partition": "partition.rule",
    "clients": "partition.clients",
    "models": "models.names",
    "rounds": "schedule.rounds",
    "participation": "schedule.participation",
    "engine": "engine.name",
    "workers": "engine.workers",
    "memory": "engine.memory",
    "server": "engine.server",
    "ca": "engine.ca",
    "simulation": "engine.simulation",
    "device": "engine.device",
    "vectorize": "engine.vectorize",
    "checkpoint_every": "engine.checkpoint_every",
    "keep_answers": "engine.keep_answers",
    "fleet": "devices.fleet",
    "assign": "devices.assign",
    "seed": "seed",
}
"""Settings that have a flag of their own, or an argument of `potluck.run`: its name, and the setting."""


def read_experiment(path: Path) -> dict[str, Any]:
    """The nested values of an experiment file."""
    try:
        return parse_toml(read_text(path))
    except FileNotFoundError:
        raise PotluckError(f"There is no experiment file {str(path)!r}; check the path.") from None
    except OSError as error:
        raise PotluckError(f"Experiment file {str(path)!r} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise PotluckError(f"Experiment file {str(path)!r} is not valid TOML: {error}.") from None


def apply_setting(values: dict[str, Any], text: str) -> None:
    """Put `a.b=value` into nested values; the value is read as TOML, or else as plain text."""
    key, equals, raw = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise PotluckError(f"--set {text!r} is not understood; write --set section.key=value.")
    put(values, path, _value(raw.strip()))


def put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Put a value into nested values, below sections that are made where they are missing."""
    *sections, name = path
    table = values
    for number, part in enumerate(sections):
        inner = table.get(part, {})
        if not isinstance(inner, Mapping):
            where = ".".join(path[: number + 1])
            raise PotluckError(
                f"{where} = {inner!r} is a value where a section is needed; write [{where}] with {name} = … in it."
            )
        table[part] = dict(inner)
        table = table[part]
    table[name] = value


def _value(raw: str) -> Any:
    try:
        return parse_toml(f"value = {raw}")["value"]
    except ValueError:
        return raw


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names, as one writes them after `--set`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(dotted(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
