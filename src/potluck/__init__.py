"""Federated classification where every client brings its own model.

    import potluck
    run = potluck.run("fedgh", data="cifar10", partition=potluck.pathological(2), models="cnn5", rounds=100)

Names are loaded when first used, so that `import potluck` is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    "potluck.api": ("run",),
    "potluck.runs.run": ("Run",),
    "potluck.runs.read": (
        "read_run",
        "read_runs",
    ),
    "potluck.runs.export": ("export_client",),
    "potluck.runs.exported": (
        "ExportedModel",
        "Prediction",
        "load_model",
    ),
    "potluck.runs.join": ("join_run",),
    "potluck.runs.forget": ("forget_client",),
    "potluck.experiment": ("Experiment",),
    "potluck.federation.federation": (
        "Federation",
        "Member",
    ),
    "potluck.federation.members": ("federate",),
    "potluck.loop.callbacks": (
        "Callback",
        "End",
        "Step",
    ),
    "potluck.method": (
        "Architecture",
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
        "Method",
        "Need",
        "PaperAccounting",
        "Payload",
        "PayloadError",
        "PotluckError",
        "Predictor",
        "Range",
        "Samples",
        "Shape",
        "SecureSums",
        "Supports",
        "Task",
        "Tensors",
        "Training",
        "Update",
        "load_tensors",
        "setting",
        "tensors_of",
    ),
    "potluck.data": (
        "Partition",
        "contiguous",
        "dirichlet",
        "from_file",
        "iid",
        "load_data",
        "natural",
        "partition",
        "pathological",
        "skew",
    ),
    "potluck.models": (
        "build_model",
        "split",
    ),
}
_HOMES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = sorted([*_HOMES, "kit"])

if TYPE_CHECKING:
    from potluck import kit
    from potluck.api import run
    from potluck.data import (
        Partition,
        contiguous,
        dirichlet,
        from_file,
        iid,
        load_data,
        natural,
        partition,
        pathological,
        skew,
    )
    from potluck.experiment import Experiment
    from potluck.federation.federation import Federation, Member
    from potluck.federation.members import federate
    from potluck.loop.callbacks import Callback, End, Step
    from potluck.method import (
        Architecture,
        Client,
        ClientInfo,
        ClientModel,
        Context,
        Counts,
        EmptyPayload,
        FitResult,
        Integers,
        Labels,
        Like,
        Method,
        Need,
        PaperAccounting,
        Payload,
        PayloadError,
        PotluckError,
        Predictor,
        Range,
        Samples,
        SecureSums,
        Shape,
        Supports,
        Task,
        Tensors,
        Training,
        Update,
        load_tensors,
        setting,
        tensors_of,
    )
    from potluck.models import build_model, split
    from potluck.runs.export import export_client
    from potluck.runs.exported import ExportedModel, Prediction, load_model
    from potluck.runs.forget import forget_client
    from potluck.runs.join import join_run
    from potluck.runs.read import read_run, read_runs
    from potluck.runs.run import Run


def __getattr__(name: str) -> Any:
    if name == "kit":
        return importlib.import_module("potluck.kit")
    if name not in _HOMES:
        raise AttributeError(f"module 'potluck' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
