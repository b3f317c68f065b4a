"""The contract of methods and clients; everything else builds on it. Names are importable flat from here.

They are loaded when first used: the supervisor of a node needs errors and settings, and no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potluck.core.client import Client
    from potluck.core.errors import PotluckError, unknown
    from potluck.core.method import Method, PaperAccounting, Predictor, Update, payload_types
    from potluck.core.model import (
        ClientModel,
        batch_norm_in_eval_mode,
        load_tensors,
        tensors_of,
        with_batch_norm_statistics,
    )
    from potluck.core.needs import Need, check_needs
    from potluck.core.payload import EmptyPayload, Payload, PayloadError, Tensors
    from potluck.core.random import derive_seed, generator, one_thread, seeded
    from potluck.core.samples import ClassMean, Samples, outputs
    from potluck.core.schema import Counts, Integers, Labels, Like, Range, Shape, check_payload
    from potluck.core.settings import Settings, setting
    from potluck.core.supports import SecureSums, Supports
    from potluck.core.task import Architecture, Averaging, ClientInfo, Context, Task
    from potluck.core.training import FitResult, Loss, Training, cross_entropy_loss

_PLACES = {
    "client": ("Client",),
    "errors": (
        "PotluckError",
        "unknown",
    ),
    "method": (
        "Method",
        "PaperAccounting",
        "Predictor",
        "Update",
        "payload_types",
    ),
    "model": (
        "ClientModel",
        "batch_norm_in_eval_mode",
        "load_tensors",
        "tensors_of",
        "with_batch_norm_statistics",
    ),
    "needs": (
        "Need",
        "check_needs",
    ),
    "payload": (
        "EmptyPayload",
        "Payload",
        "PayloadError",
        "Tensors",
    ),
    "random": (
        "derive_seed",
        "generator",
        "one_thread",
        "seeded",
    ),
    "samples": (
        "ClassMean",
        "Samples",
        "outputs",
    ),
    "schema": (
        "Counts",
        "Integers",
        "Labels",
        "Like",
        "Range",
        "Shape",
        "check_payload",
    ),
    "settings": (
        "Settings",
        "setting",
    ),
    "supports": (
        "SecureSums",
        "Supports",
    ),
    "task": (
        "Architecture",
        "Averaging",
        "ClientInfo",
        "Context",
        "Task",
    ),
    "training": (
        "FitResult",
        "Loss",
        "Training",
        "cross_entropy_loss",
    ),
}
_HOMES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "Architecture",
    "Averaging",
    "ClassMean",
    "Client",
    "ClientInfo",
    "ClientModel",
    "Context",
    "Counts",
    "EmptyPayload",
    "FitResult",
    "Integers",
    "Labels",
    "Like",
    "Loss",
    "Method",
    "Need",
    "PaperAccounting",
    "Payload",
    "PayloadError",
    "PotluckError",
    "Predictor",
    "Range",
    "Samples",
    "SecureSums",
    "Settings",
    "Shape",
    "Supports",
    "Task",
    "Tensors",
    "Training",
    "Update",
    "batch_norm_in_eval_mode",
    "check_needs",
    "check_payload",
    "cross_entropy_loss",
    "derive_seed",
    "generator",
    "load_tensors",
    "one_thread",
    "outputs",
    "payload_types",
    "seeded",
    "setting",
    "tensors_of",
    "unknown",
    "with_batch_norm_statistics",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
