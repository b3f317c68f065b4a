"""The question as data: sections, files and overrides, and what may differ between two that ask the same."""

from potluck.experiment.experiment import (
    SHORT_FORMS,
    Experiment,
    apply_setting,
    asked_values,
    base_values,
    dotted,
    flag_values,
    make_method,
    parse_experiment,
    put,
    read_experiment,
)

__all__ = [
    "SHORT_FORMS",
    "Experiment",
    "apply_setting",
    "asked_values",
    "base_values",
    "dotted",
    "flag_values",
    "make_method",
    "parse_experiment",
    "put",
    "read_experiment",
]
