"""Clipping and Gaussian noise for what a client sends, applied before it leaves the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from potluck.core.client import Client
from potluck.core.payload import Payload, Tensors, field_kinds
from potluck.core.schema import Like
from potluck.core.secret import secret_normal


@dataclass(frozen=True)
class Privacy:
    """All real numbers of an answer, as one vector, are clipped to length `clip`; noise of `noise`·`clip` is added.

    Tensors that were also in the message (weights) are clipped as differences to what was received. Class ids,
    counts and single numbers travel as they are. With `reproducible` the noise comes from the client's seeded
    stream, which whoever knows the seed can take away again: right for experiments, wrong for real secrets.
    Without, every number is made from random bytes of the operating system, and no seed exists.
    """

    clip: float
    noise: float
    reproducible: bool = True

    def conceal(self, me: Client, message: Payload, answer: Payload) -> Payload:
        """The answer as it may leave the client."""
        known, sent = message.flatten()[0], _real(answer)
        origin = {name: _origin(name, tensor, known) for name, tensor in sent.items()}
        moved = {name: tensor - origin[name] for name, tensor in sent.items()}
        length = torch.stack([step.double().square().sum() for step in moved.values()] or [torch.zeros(())])
        norm = float(length.sum().sqrt())
        scale = min(1.0, self.clip / norm) if norm > 0 else 1.0
        draw = partial(_seeded_normal, me.rng("privacy")) if self.reproducible else secret_normal
        noisy = {
            name: origin[name] + scale * step + self.clip * self.noise * _like(step, draw(step.shape))
            for name, step in moved.items()
        }
        return _rebuilt(answer, noisy)


def _real(answer: Payload) -> Tensors:
    return {name: tensor for name, tensor in answer.flatten()[0].items() if tensor.is_floating_point()}


def _origin(name: str, tensor: Tensor, known: Mapping[str, Tensor]) -> Tensor:
    """What the server knows already of an entry of a dict field: the tensor it sent under the same name."""
    received = known.get(name) if "." in name else None
    if received is None or received.shape != tensor.shape:
        return torch.zeros_like(tensor)
    return received.to(device=tensor.device, dtype=tensor.dtype)


def _seeded_normal(rng: torch.Generator, shape: torch.Size) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def _like(tensor: Tensor, noise: Tensor) -> Tensor:
    return noise.to(device=tensor.device, dtype=tensor.dtype)


def _rebuilt(answer: Payload, tensors: Tensors) -> Payload:
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
    """Noise may make a variance negative; lifting it to zero looks at nothing private."""
    return tensor.clamp(min=0) if name.endswith("running_var") and not changes else tensor
