"""Experiments that are to stand side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from potluck.core.method import Need
from potluck.experiment.experiment import Experiment, parse_experiment


def comparable(settings: Sequence[Mapping[str, Any]]) -> list[Experiment]:
    """Experiments that differ in method and seed only: what one needs held out is held out for all."""
    experiments = [parse_experiment(values) for values in settings]
    if any(Need.PUBLIC_DATA in experiment.build_method().requires() for experiment in experiments):
        return [
            one.changed({"data.public": 0.1}) if one.data.public == "auto" else one for one in experiments
        ]
    return experiments
