"""Floating-point operations of one training sample, counted by torch itself."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from potluck.core.method import Method
from potluck.core.model import ClientModel, norms_at_rest
from potluck.core.random import seeded
from potluck.core.task import Architecture, Task
from potluck.federation.federation import Federation
from potluck.models.dense import FLOPS


def training_flops(model: ClientModel, example: Tensor) -> int:
    """Operations of one sample forward and backward (a multiplication and its addition are two).

    The backward pass is taken as twice the forward one: torch's counter overstates that of depthwise
    convolutions many times over.
    """
    model.eval()  # batch statistics cost next to nothing, and one sample has none
    counter = FlopCounterMode(display=False, custom_mapping=FLOPS)
    with counter, torch.no_grad(), norms_at_rest(model):
        _without_compiler(counter)
        model(example[:1])
    return 3 * int(counter.get_total_flops())


def _without_compiler(counter: FlopCounterMode) -> None:
    """Let torch count without loading its compiler, a second's work only to tell it to stay away."""
    mode: Any = counter.mode
    mode.__torch_dispatch__ = MethodType(inspect.unwrap(type(mode).__torch_dispatch__), mode)


def flops_by_architecture(task: Task, example: Tensor) -> dict[str, int]:
    """The count for each architecture that the server can build; 0 for one it cannot."""
    return {name: _count(a, task, example) for name, a in task.architectures.items()}


def _count(architecture: Architecture, task: Task, example: Tensor) -> int:
    if architecture.build is None:
        return 0
    with seeded("flops"):
        model = architecture.build().to(device=task.device, dtype=task.dtype)
    return training_flops(model, example)


def flops_per_round(
    method: Method[Any, Any, Any], federation: Federation, absent: Collection[int] = ()
) -> dict[str, float]:
    """Operations of a client's round, mean over clients but absent ones: forward and backward of all its samples.

    Models that stay on machines of their own are not counted.
    """
    task = federation.task
    if any(architecture.build is None for architecture in task.architectures.values()):
        return {}
    flops = flops_by_architecture(task, federation.example())
    work = [
        flops[info.architecture] * method.workload(info.samples, federation.training)
        for info in task.clients
        if info.index not in absent
    ]
    return {"flops_per_client_round": sum(work) / len(work)}
