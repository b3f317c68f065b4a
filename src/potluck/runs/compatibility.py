"""Methods that a federation can run, and why it cannot run the others, by the checks of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.core.errors import PotluckError
from potluck.core.needs import Need
from potluck.experiment import Experiment
from potluck.experiment.sections import MethodSection
from potluck.federation.population import experiment_data
from potluck.methods import METHODS
from potluck.models import resolve_models
from potluck.runs.resolve import choose_models, choose_partition, resolve


@dataclass
class Compatibility:
    """Compatible methods, each with a remark; the others, each with the reason."""

    federation: str
    compatible: dict[str, str] = field(default_factory=dict)
    incompatible: dict[str, str] = field(default_factory=dict)


def compatible_methods(experiment: Experiment) -> Compatibility:
    """Resolve every method, with its defaults, for the data, clients, models and schedule of an experiment."""
    method = experiment.build_method()
    data = experiment_data(experiment)
    experiment = choose_models(choose_partition(experiment, data), method, data)
    result = Compatibility(
        f"{experiment.data.name}, {experiment.partition.rule}, {experiment.partition.clients} clients with "
        f"{', '.join(resolve_models(experiment.models.names))}"
    )
    for name in METHODS:
        settings = experiment.method if name == experiment.method.name else MethodSection(name=name)
        try:
            plan = resolve(experiment.with_settings({"method": settings}), measure=False)
        except PotluckError as error:
            result.incompatible[name] = str(error)
            continue
        public = experiment.data.public == "auto" and Need.PUBLIC_DATA in plan.method.requires()
        result.compatible[name] = "a tenth of the rows held out as public data" if public else ""
    return result
