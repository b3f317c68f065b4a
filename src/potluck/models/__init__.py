"""Client networks: a zoo by name, groups of it, and any module of the user's own."""

from potluck.models.card import Layer, ModelCard, describe, measure_speed
from potluck.models.lora import attach_adapters, merge_adapters
from potluck.models.registry import (
    assign,
    build_model,
    count_parameters,
    example_shape,
    groups,
    model_names,
    model_summary,
    resolve_models,
    smallest,
)
from potluck.models.split import SplitModel, check_split, network_name, original_names, split

__all__ = [
    "Layer",
    "ModelCard",
    "SplitModel",
    "assign",
    "attach_adapters",
    "build_model",
    "check_split",
    "count_parameters",
    "describe",
    "example_shape",
    "groups",
    "measure_speed",
    "merge_adapters",
    "model_names",
    "model_summary",
    "network_name",
    "original_names",
    "resolve_models",
    "smallest",
    "split",
]
