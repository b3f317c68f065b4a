"""The whole question as data: one validated object, read from TOML or built in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.training import Training
from potluck.experiment.checks import one_sentence
from potluck.experiment.method_settings import make_method, values_of, without_none
from potluck.experiment.sections import (
    DataSettings,
    DeviceSettings,
    EngineSettings,
    MethodSection,
    ModelSettings,
    PartitionSettings,
)
from potluck.loop.attack import Attack
from potluck.loop.evaluation import Evaluation
from potluck.loop.faults import Faults
from potluck.loop.privacy import Privacy
from potluck.loop.schedule import Schedule
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
        from potluck.experiment.objects import cannot_act

        values, usual = (without_none(one.model_dump()) for one in (self, Experiment()))
        for name in cannot_act(self.objects or ()):
            section, _, key = name.partition(".")
            if values[section].get(key) == usual[section].get(key):  # else it is a fact of an object
                values[section].pop(key, None)
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
