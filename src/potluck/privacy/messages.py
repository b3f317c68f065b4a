"""Clipping and Gaussian noise for a client's answer, applied before it leaves the client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from potluck.core.client import Client
from potluck.core.payload import Payload, Tensors, field_kinds
from potluck.core.schema import Like
from potluck.privacy.classes import fill_all_classes
from potluck.privacy.settings import Privacy


def float_tensors(answer: Payload) -> Tensors:
    """Return the tensors of real numbers: neither class ids nor counts."""
    return {name: tensor for name, tensor in answer.flatten()[0].items() if tensor.is_floating_point()}


def reference_tensors(sent: Mapping[str, Tensor], message: Payload) -> Tensors:
    """Return what the server already knows of each tensor: the weights that it sent, or zeros."""
    received = message.flatten()[0]
    return {name: _reference(name, tensor, received) for name, tensor in sent.items()}


def _reference(name: str, tensor: Tensor, message: Mapping[str, Tensor]) -> Tensor:
    """Return the tensor that the server sent under the same name of a dict field, or zeros."""
    received = message.get(name) if "." in name else None
    if received is None or received.shape != tensor.shape:
        return torch.zeros_like(tensor)
    return received.to(device=tensor.device, dtype=tensor.dtype)


def with_tensors(answer: Payload, tensors: Mapping[str, Tensor]) -> Payload:
    """Return the answer with some of its tensors replaced."""
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
    """Raise a variance that became negative to zero, which uses no private data."""
    return tensor.clamp(min=0) if name.endswith("running_var") and not changes else tensor


def privatize(settings: Privacy, me: Client, message: Payload, answer: Payload) -> Payload:
    """Clip an answer and add noise, before it leaves the client."""
    if settings.hide_classes:
        answer = fill_all_classes(me, answer)
    sent = float_tensors(answer)
    origin = reference_tensors(sent, message)
    moved = {name: _finite(tensor - origin[name]) for name, tensor in sent.items()}
    length = torch.stack([step.double().square().sum() for step in moved.values()] or [torch.zeros(())])
    norm = float(length.sum().sqrt())
    scale = min(1.0, settings.clip / norm) if norm > 0 else 1.0
    draw = partial(seeded_normal, me.rng("privacy")) if settings.reproducible else secret_normal
    noisy = {
        name: origin[name]
        + scale * step
        + settings.clip * settings.noise_multiplier * _like(step, draw(step.shape))
        for name, step in moved.items()
    }
    return with_tensors(answer, noisy)


def _finite(step: Tensor) -> Tensor:
    """Replace values that are not finite by 0: one of them would make the length not-a-number and disable clipping."""
    return torch.where(step.isfinite(), step, torch.zeros_like(step))


def seeded_normal(rng: torch.Generator, shape: torch.Size) -> Tensor:
    """Standard normal numbers in double precision, from a seeded stream."""
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def _like(tensor: Tensor, noise: Tensor) -> Tensor:
    return noise.to(device=tensor.device, dtype=tensor.dtype)


# -- noise from the operating system: for what an adversary must not guess ------------------------------------

PAIRS = 1 << 17
"""How many pairs of numbers are made at once, so that noise for a large model needs little memory besides."""


def secret_normal(shape: torch.Size) -> Tensor:
    """Standard normal numbers in double precision; each pair takes 128 bits from `os.urandom`, no seed exists."""
    count = shape.numel()
    noise = np.empty(count + count % 2)
    for start in range(0, len(noise), 2 * PAIRS):
        part = noise[start : start + 2 * PAIRS]
        part[:] = _box_muller(len(part) // 2)
    return torch.from_numpy(noise[:count].copy()).view(shape)


def _box_muller(pairs: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Two independent normal numbers out of every two uniform ones."""
    bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64) >> np.uint64(11)  # a double holds 53 bits
    first, second = bits[:pairs], bits[pairs:]
    radius = np.sqrt(-2 * np.log((first + np.uint64(1)) * 2.0**-53))  # above 0, so the logarithm is finite
    angle = second * (2 * np.pi * 2.0**-53)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
