"""The question as data: sections, files and overrides, and what may differ between two that ask the same."""

from potluck.experiment.experiment import Experiment, parse_experiment
from potluck.experiment.files import SHORT_FORMS, apply_setting, dotted, put, read_experiment
from potluck.experiment.method_settings import make_method

__all__ = [
    "SHORT_FORMS",
    "Experiment",
    "apply_setting",
    "dotted",
    "make_method",
    "parse_experiment",
    "put",
    "read_experiment",
]
