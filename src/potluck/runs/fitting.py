"""Which methods can a federation run, and why not the others? Asked of the same checks that a run goes through."""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.core.errors import PotluckError
from potluck.core.method import Need
from potluck.experiment import Experiment
from potluck.experiment.sections import MethodSection
from potluck.federation.population import experiment_data
from potluck.methods import METHODS
from potluck.models import resolve_models
from potluck.runs.resolve import decide_models, resolve


@dataclass
class Fitting:
    """The methods that fit, each with what a user should know; the others, each with the reason."""

    federation: str
    fit: dict[str, str] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)


def fitting(experiment: Experiment) -> Fitting:
    """Try every method of the list, at its defaults, on the data, clients, models and schedule of an experiment."""
    method = experiment.build_method()
    experiment = decide_models(experiment, method, experiment_data(experiment))
    found = Fitting(
        f"{experiment.data.name}, {experiment.partition.rule}, {experiment.partition.clients} clients with "
        f"{', '.join(resolve_models(experiment.models.names))}"
    )
    for name in METHODS:
        settings = experiment.method if name == experiment.method.name else MethodSection(name=name)
        try:
            resolved = resolve(experiment.changed({"method": settings}))
        except PotluckError as error:
            found.unfit[name] = str(error)
            continue
        public = experiment.data.public == "auto" and Need.PUBLIC_DATA in resolved.method.requires()
        found.fit[name] = "a tenth of the rows held out as public data" if public else ""
    return found
