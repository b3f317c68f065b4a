"""The question as data: sections, files and overrides, and what may differ between two that ask the same."""

from potluck.experiment.experiment import (
    SHORT_FORMS,
    Experiment,
    apply_setting,
    flag_values,
    flat_settings,
    make_method,
    merge_settings,
    parse_experiment,
    put_setting,
    read_experiment,
    read_target,
)

__all__ = [
    "SHORT_FORMS",
    "Experiment",
    "apply_setting",
    "flag_values",
    "flat_settings",
    "make_method",
    "merge_settings",
    "parse_experiment",
    "put_setting",
    "read_experiment",
    "read_target",
]
