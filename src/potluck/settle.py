"""Settings that only the data, the other methods or a measurement can decide: decided once, then on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method, Need
from potluck.core.threads import one_thread
from potluck.data import Data
from potluck.engines.channels_last import chosen
from potluck.engines.pool.process import check_possible
from potluck.engines.vectorized.decide import worth_stacking
from potluck.experiment import Experiment, parse_experiment, read_experiment
from potluck.federation import Federation
from potluck.population import suitable_models
from potluck.runs.folder import EXPERIMENT


def settle_models(experiment: Experiment, method: Method[Any, Any, Any], data: Data) -> Experiment:
    """Say which group `auto` means, so that the run's own file can repeat it."""
    if experiment.models.names != ("auto",):
        return experiment
    names = (suitable_models(method, data),)
    return experiment.model_copy(update={"models": experiment.models.model_copy(update={"names": names})})


def settle_engine(experiment: Experiment, federation: Federation, run: Path) -> Experiment:
    """What `auto` means for engine, stacking and layout: what the run's file says, if there is one, or what suits."""
    settings, file = experiment.engine, run / EXPERIMENT
    known = read_experiment(file).get("engine", {}) if file.exists() else {}
    decided: dict[str, Any] = {}
    if settings.name == "auto":
        suitable = "pool" if federation.task.device.type == "cpu" else "serial"
        decided["name"] = known.get("name", suitable)
    if settings.vectorize == "auto":
        decided["vectorize"] = known.get("vectorize") or _measured(federation)
    stacked = decided.get("vectorize", settings.vectorize) == "on"
    if decided.get("name", settings.name) == "pool" and not stacked:
        check_possible()
    if settings.channels_last == ("auto",) and (stacked or "channels_last" in known):
        decided["channels_last"] = tuple(known.get("channels_last", ()))
    elif settings.channels_last:
        if stacked or settings.name == "flower":
            other = "engine.vectorize = 'on'" if stacked else "engine.name = 'flower'"
            raise PotluckError(f"engine.channels_last does not go with {other}; leave one of them out.")
        with one_thread():
            decided["channels_last"] = chosen(settings.channels_last, federation)
    return experiment.model_copy(update={"engine": settings.model_copy(update=decided)})


def _measured(federation: Federation) -> str:
    with one_thread():
        return "on" if worth_stacking(federation.task, federation.client) else "off"


def comparable(settings: Sequence[Mapping[str, Any]]) -> list[Experiment]:
    """Experiments that differ in method and seed only: what one needs held out is held out for all."""
    experiments = [parse_experiment(values) for values in settings]
    if any(Need.PUBLIC_DATA in experiment.build_method().requires() for experiment in experiments):
        return [
            one.model_copy(update={"data": one.data.model_copy(update={"public": 0.1})})
            if one.data.public == "auto"
            else one
            for one in experiments
        ]
    return experiments
