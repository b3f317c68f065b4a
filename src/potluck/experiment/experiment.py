"""The experiment: one validated object, read from a file, from flags or built in Python, and written to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from inspect import get_annotations
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from potluck.attacks import Attack
from potluck.core.errors import PotluckError, unknown
from potluck.core.files import parse_toml, read_text
from potluck.core.method import Method
from potluck.core.training import Training
from potluck.experiment.checks import validation_error
from potluck.experiment.sections import (
    DataSettings,
    DeviceSettings,
    EngineSettings,
    MethodSection,
    ModelSettings,
    PartitionSettings,
)
from potluck.loop.faults import Faults
from potluck.loop.schedule import Evaluation, Schedule
from potluck.methods import method_class
from potluck.privacy.settings import Privacy
from potluck.worker.safeguard import Safeguard


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
    safeguard: Safeguard = Safeguard()
    evaluate: Evaluation = Evaluation()
    engine: EngineSettings = EngineSettings()
    objects: tuple[str, ...] | None = Field(
        None, description="parts that were Python objects, which a file cannot hold"
    )

    def build_method(self) -> Method[Any, Any, Any]:
        """Build the method; its settings are checked."""
        return make_method(method_class(self.method.name), self.method.model_extra or {})

    def uses(self, section: str) -> bool:
        """Tell whether a section differs from its default; code for what is switched off is then never entered."""
        return bool(getattr(self, section) != type(self).model_fields[section].default)

    def value(self, name: str) -> Any:
        """Return the value of a setting by its dotted name."""
        section, _, key = name.partition(".")
        part = getattr(self, section)
        return getattr(part, key) if key else part

    def with_method_defaults(self) -> Experiment:
        """Return the same experiment with every setting of its method."""
        return self.with_method_settings(self.build_method(), self.method.name)

    def with_method_settings(self, method: Method[Any, Any, Any], name: str) -> Experiment:
        """Return the same experiment with the settings of a method object, recorded under `name`."""
        return self.model_copy(update={"method": MethodSection(name=name, **method_settings(method))})

    def with_settings(self, values: Mapping[str, Any]) -> Experiment:
        """Return the same experiment with other values of some settings, by their dotted names."""
        update: dict[str, Any] = {}
        for name, value in values.items():
            section, _, key = name.partition(".")
            before = update.get(section, getattr(self, section))
            update[section] = replace(before, **{key: value}) if key else value
        return self.model_copy(update=update)

    def to_toml(self) -> str:
        """Return the text of an experiment file; settings that are unset or have no effect are left out."""
        values = without_none(self.model_dump())
        if self.objects:
            from potluck.experiment.objects import drop_ineffective

            drop_ineffective(values, self.objects)
        try:
            return tomli_w.dumps({name: part for name, part in values.items() if part != {}})
        except TypeError:
            raise PotluckError(
                f"The experiment cannot be written: {_unwritable(values)}; settings are numbers, text or lists."
            ) from None


def parse_experiment(values: Mapping[str, Any]) -> Experiment:
    """Build an experiment from nested values; the first invalid value raises one sentence."""
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise validation_error(error, Experiment) from None


def _unwritable(values: Mapping[str, Any], prefix: str = "") -> str:
    """Describe the first value that TOML cannot represent."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            if path := _unwritable(value, f"{prefix}{key}."):
                return path
        elif not isinstance(value, str | bool | int | float | list | tuple):
            return f"{prefix}{key} is a {type(value).__name__}"
    return ""


# -- a method's settings: from values to a checked method, and back --------------------------------------------


def make_method(cls: type[Method[Any, Any, Any]], values: Mapping[str, Any]) -> Method[Any, Any, Any]:
    """Build a method from its settings; an unknown or invalid setting raises one sentence."""
    _check_dataclass(cls)
    field_names: list[str] = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in field_names:
            name = cls.name or cls.__name__
            raise unknown(f"setting of method {name!r}", key, field_names or ["(it has none)"])
    try:
        method: Method[Any, Any, Any] = TypeAdapter(cls).validate_python(dict(values))
    except ValidationError as error:
        raise validation_error(error, cls, "method.") from None
    except PydanticSchemaGenerationError as error:
        reason = str(error).split(". ", 1)[0]
        raise PotluckError(
            f"A setting of {cls.__name__} has a type that no experiment file holds ({reason}); declare settings as "
            "numbers, text, truth values, or tuples of these."
        ) from None
    return method


def _check_dataclass(cls: type[Method[Any, Any, Any]]) -> None:
    """Raise for a method whose own settings the decorator was not applied to."""
    own = {name for name, kind in get_annotations(cls).items() if "ClassVar" not in str(kind)}
    if "__dataclass_params__" not in vars(cls) and (own or not is_dataclass(cls)):
        raise PotluckError(f"{cls.__name__} is not a dataclass; put @dataclass above its class line.")


def method_settings(method: Method[Any, Any, Any]) -> dict[str, Any]:
    """Return a method's settings by name, without those that are unset (None)."""
    return without_none(asdict(method)) if is_dataclass(method) else {}


def without_none(value: Any) -> Any:
    """Return nested values without those that are unset (None)."""
    if isinstance(value, dict):
        return {key: without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [without_none(entry) for entry in value]
    return value


# -- from files and flags --------------------------------------------------------------------------------------


SHORT_FORMS = {
    "data": "data.name",
    "data_root": "data.root",
    "label": "data.label",
    "groups": "data.groups",
    "text": "data.text",
    "missing": "data.missing",
    "image_size": "data.image_size",
    "partition": "partition.rule",
    "clients": "partition.clients",
    "models": "models.names",
    "rounds": "schedule.rounds",
    "participation": "schedule.participation",
    "lr": "training.lr",
    "epochs": "training.epochs",
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
    "safeguard": "safeguard.mode",
    "seed": "seed",
}
"""Names of flags and of arguments of `potluck.run`, each with its setting."""


def flag_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among a command's arguments, by dotted names."""
    return {SHORT_FORMS[name]: value for name, value in arguments.items() if name in SHORT_FORMS}


def merge_settings(
    base: dict[str, Any], flags: Mapping[str, Any], settings: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return nested values: those of a file, changed by flags (by their own or dotted names), then by `--set`."""
    for name, value in flags.items():
        if value is not None:
            put_setting(base, SHORT_FORMS.get(name, name).split("."), value)
    for text in settings or ():
        apply_setting(base, text)
    return base


def read_target(target: str) -> dict[str, Any]:
    """Return the nested values that a target stands for: the content of a `.toml` file, or a method's name."""
    if target.endswith(".toml"):
        return read_experiment(Path(target))
    if "/" in target and ":" not in target:
        file = Path(target, "experiment.toml")
        hint = f"give its experiment, {str(file)!r}" if file.exists() else "check the path"
        raise PotluckError(f"{target!r} is neither a method nor an experiment file (.toml); {hint}.")
    return {"method": {"name": target}}


def read_experiment(path: Path) -> dict[str, Any]:
    """Read the nested values of an experiment file."""
    try:
        return parse_toml(read_text(path))
    except FileNotFoundError:
        raise PotluckError(f"There is no experiment file {str(path)!r}; check the path.") from None
    except OSError as error:
        raise PotluckError(f"Experiment file {str(path)!r} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise PotluckError(f"Experiment file {str(path)!r} is not valid TOML: {error}.") from None


def apply_setting(values: dict[str, Any], text: str) -> None:
    """Apply `a.b=value` to nested values; the value is parsed as TOML, or taken as text."""
    key, equals, raw = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise PotluckError(f"--set {text!r} is not valid; write --set section.key=value.")
    put_setting(values, path, _value(raw.strip()))


def as_list(value: Any) -> Any:
    """Return a tuple as a list, as files hold it; other values as they are."""
    return list(value) if isinstance(value, tuple) else value


def put_setting(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value in nested values; missing sections are created."""
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


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their dotted names, as written after `--set`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flat_settings(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
