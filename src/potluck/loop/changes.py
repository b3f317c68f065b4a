"""The real numbers of an answer, as changes to what its client had received: what noise and attacks act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from potluck.core.payload import Payload, Tensors, field_kinds
from potluck.core.schema import Like


def real_tensors(answer: Payload) -> Tensors:
    """The tensors of real numbers: neither class ids nor counts."""
    return {name: tensor for name, tensor in answer.flatten()[0].items() if tensor.is_floating_point()}


def origins(sent: Mapping[str, Tensor], message: Payload) -> Tensors:
    """What the server knows already of each tensor: weights that it sent, or else zeros."""
    known = message.flatten()[0]
    return {name: _origin(name, tensor, known) for name, tensor in sent.items()}


def _origin(name: str, tensor: Tensor, known: Mapping[str, Tensor]) -> Tensor:
    """What the server knows already of an entry of a dict field: the tensor it sent under the same name."""
    received = known.get(name) if "." in name else None
    if received is None or received.shape != tensor.shape:
        return torch.zeros_like(tensor)
    return received.to(device=tensor.device, dtype=tensor.dtype)


def rebuilt(answer: Payload, tensors: Mapping[str, Tensor]) -> Payload:
    """The answer with some of its tensors replaced."""
    values: dict[str, Any] = {}
    tensors = {**answer.flatten()[0], **tensors}
    for field in fields(answer):
        value = getattr(answer, field.name)
        if isinstance(value, Tensor):
            values[field.name] = tensors[field.name]
        elif isinstance(value, Mapping):
            rules = field_kinds(type(answer))[field.name].rules
            changes = any(isinstance(rule, Like) and rule.changes for rule in rules)
            values[field.name] = {key: _usable(key, tensors[f"{field.name}.{key}"], changes) for key in value}
    return replace(answer, **values)


def _usable(name: str, tensor: Tensor, changes: bool) -> Tensor:
    """A variance may have become negative; lifting it to zero looks at nothing private."""
    return tensor.clamp(min=0) if name.endswith("running_var") and not changes else tensor
