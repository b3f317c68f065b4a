"""The whole question as data: one validated object, from a file, from flags or built in Python, and back to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from potluck.core.errors import PotluckError, unknown
from potluck.core.files import parse_toml, read_text
from potluck.core.method import Method
from potluck.core.training import Training
from potluck.experiment.checks import one_sentence
from potluck.experiment.sections import (
    DataSettings,
    DeviceSettings,
    EngineSettings,
    MethodSection,
    ModelSettings,
    PartitionSettings,
)
from potluck.loop.attack import Attack
from potluck.loop.faults import Faults
from potluck.loop.privacy import Privacy
from potluck.loop.schedule import Evaluation, Schedule
from potluck.methods import method_class


class Experiment(BaseModel):
    """Method, data, partition, models, training, schedule, evaluation, engine and seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(0, ge=0, description="a result depends on the experiment and this number alone")
    method: MethodSection = MethodSection()
    data: DataSettings = DataSettings()
    partition: PartitionSettings = PartitionSettings()
    models: ModelSettings = ModelSettings()
    training: Training = Training()
    schedule: Schedule = Schedule()
    devices: DeviceSettings = DeviceSettings()
    faults: Faults = Faults()
    privacy: Privacy = Privacy()
    attack: Attack = Attack()
    evaluate: Evaluation = Evaluation()
    engine: EngineSettings = EngineSettings()
    objects: tuple[str, ...] | None = Field(
        None, description="parts that were Python objects, which a file cannot hold"
    )

    def build_method(self) -> Method[Any, Any, Any]:
        """The method with its settings checked."""
        return make_method(method_class(self.method.name), self.method.model_extra or {})

    def uses(self, section: str) -> bool:
        """Whether anything of a section is other than usual. What is off is asked here, and then not entered."""
        return bool(getattr(self, section) != type(self).model_fields[section].default)

    def resolved(self) -> Experiment:
        """The same experiment with every setting of its method spelled out."""
        return self.with_method(self.build_method(), self.method.name)

    def with_method(self, method: Method[Any, Any, Any], name: str) -> Experiment:
        """The same experiment for a method object, recorded under `name`."""
        return self.model_copy(update={"method": MethodSection(name=name, **values_of(method))})

    def changed(self, values: Mapping[str, Any]) -> Experiment:
        """The same experiment with other values of some settings, by their dotted names."""
        update: dict[str, Any] = {}
        for name, value in values.items():
            section, _, key = name.partition(".")
            before = update.get(section, getattr(self, section))
            update[section] = replace(before, **{key: value}) if key else value
        return self.model_copy(update=update)

    def to_toml(self) -> str:
        """The file that gives this experiment again; what is unset, or could not act, is left out."""
        values = without_none(self.model_dump())
        if self.objects:
            from potluck.experiment.objects import leave_out_inert

            leave_out_inert(values, self.objects)
        try:
            return tomli_w.dumps({name: part for name, part in values.items() if part != {}})
        except TypeError:
            raise PotluckError(
                f"The experiment cannot be written down: {_odd(values)}; settings are numbers, text, lists."
            ) from None


def parse_experiment(values: Mapping[str, Any]) -> Experiment:
    """An experiment from nested values; the first thing wrong becomes one sentence."""
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise one_sentence(error, Experiment) from None


def _odd(values: Mapping[str, Any], prefix: str = "") -> str:
    """The first value that TOML has no form for, with its name."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            if found := _odd(value, f"{prefix}{key}."):
                return found
        elif not isinstance(value, str | bool | int | float | list | tuple):
            return f"{prefix}{key} is a {type(value).__name__}"
    return ""


# -- a method's settings: from values to a checked method, and back --------------------------------------------


def make_method(cls: type[Method[Any, Any, Any]], values: Mapping[str, Any]) -> Method[Any, Any, Any]:
    """A method from its settings; an unknown or unfit one is named with its remedy."""
    known: list[str] = [field.name for field in fields(cls)] if is_dataclass(cls) else []
    for key in values:
        if key not in known:
            raise unknown(f"setting of method {cls.name!r}", key, known or ["(it has none)"])
    try:
        method: Method[Any, Any, Any] = TypeAdapter(cls).validate_python(dict(values))
    except ValidationError as error:
        raise one_sentence(error, cls, "method.") from None
    return method


def values_of(method: Method[Any, Any, Any]) -> dict[str, Any]:
    """A method's settings by name; those left unset (None) are not named."""
    return without_none(asdict(method)) if is_dataclass(method) else {}


def without_none(value: Any) -> Any:
    """Nested values without those that are unset."""
    if isinstance(value, dict):
        return {key: without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [without_none(entry) for entry in value]
    return value


# -- from files and flags --------------------------------------------------------------------------------------


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


def flag_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted names out of a command's arguments; those that are no settings are left out."""
    return {SHORT_FORMS[name]: value for name, value in arguments.items() if name in SHORT_FORMS}


def asked_values(
    base: dict[str, Any], flags: Mapping[str, Any], settings: Sequence[str] | None
) -> dict[str, Any]:
    """Nested values: those of a file, then flags that were given (by dotted names), then `--set`."""
    for name, value in flags.items():
        if value is not None:
            put(base, name.split("."), value)
    for text in settings or ():
        apply_setting(base, text)
    return base


def base_values(target: str) -> dict[str, Any]:
    """The start of an experiment: a file's content, or just a method's name."""
    return read_experiment(Path(target)) if target.endswith(".toml") else {"method": {"name": target}}


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
