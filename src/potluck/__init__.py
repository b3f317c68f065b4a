"""Federated learning where everyone brings their own model.

    import potluck
    run = potluck.run("fedgh", data="cifar10", partition=potluck.pathological(2), models="cnn5", rounds=100)

Names are loaded when first used, so that `import potluck` is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    "potluck.session": ("Run", "run"),
    "potluck.experiment": ("Experiment",),
    "potluck.export": ("export_client", "load_model"),
    "potluck.members": ("Member", "federate"),
    "potluck.core.callback": ("Callback", "End", "Step"),
    "potluck.core.client": ("Client",),
    "potluck.core.errors": ("PotluckError",),
    "potluck.core.method": ("Method", "Need", "Update"),
    "potluck.core.model": ("ClientModel",),
    "potluck.core.payload": ("Nothing", "Payload", "Tensors"),
    "potluck.core.task": ("ClientInfo", "Context", "Task"),
    "potluck.core.training": ("Training",),
    "potluck.data": (
        "contiguous",
        "dirichlet",
        "from_file",
        "iid",
        "load_data",
        "natural",
        "partition",
        "pathological",
    ),
    "potluck.models": ("build_model", "split"),
    "potluck.runs.read": ("read_run",),
}
_HOMES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from potluck.core.callback import Callback, End, Step
    from potluck.core.client import Client
    from potluck.core.errors import PotluckError
    from potluck.core.method import Method, Need, Update
    from potluck.core.model import ClientModel
    from potluck.core.payload import Nothing, Payload, Tensors
    from potluck.core.task import ClientInfo, Context, Task
    from potluck.core.training import Training
    from potluck.data import (
        contiguous,
        dirichlet,
        from_file,
        iid,
        load_data,
        natural,
        partition,
        pathological,
    )
    from potluck.experiment import Experiment
    from potluck.export import export_client, load_model
    from potluck.members import Member, federate
    from potluck.models import build_model, split
    from potluck.runs.read import read_run
    from potluck.session import Run, run


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'potluck' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
