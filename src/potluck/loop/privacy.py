"""Clipping and Gaussian noise for what a client sends, applied before it leaves the client."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from potluck.core.client import Client
from potluck.core.payload import Payload
from potluck.core.settings import Settings, setting
from potluck.loop.changes import origins, real_tensors, rebuilt
from potluck.loop.every_class import for_every_class


@dataclass(frozen=True)
class Privacy(Settings):
    """Clipping and noise for what clients send; the guarantee and its limits are in docs/privacy.md.

    All real numbers of an answer, as one vector, are clipped to length `clip`; noise of `noise_multiplier`·`clip` is
    added. Tensors that were also in the message (weights) are clipped as differences to what was received. A number
    that is not finite counts as no change. Class ids and counts travel as they are unless `hide_classes` is set,
    single numbers always do. With `reproducible` the noise comes from the client's seeded
    stream, which whoever knows the seed can take away again: right for experiments, wrong for real secrets.
    Without, every number is made from random bytes of the operating system, and no seed exists.
    """

    clip: float = setting(0.0, "length that an answer's real numbers are clipped to; 0: off", ge=0)
    noise_multiplier: float = setting(0.0, "standard deviation of the noise, in units of clip", ge=0)
    delta: float = setting(1e-5, "the δ at which ε is reported", gt=0, lt=1)
    reproducible: bool = setting(True, "noise from the seed (experiments), or truly secret noise")
    hide_classes: bool = setting(
        False,
        "answer for every class, with equal counts, so that nobody learns which classes a client has",
        later=True,
    )
    scores: bool = setting(
        True, "whether scores, training losses and notes, which have no noise, leave clients", later=True
    )

    unit: Literal["client", "record"] = setting(
        "client",
        "what is protected: a client's whole data, by noise on its answer; or each of its training rows, by noise in "
        "local training and in class means",
        later=True,
    )
    vector_clip: float = setting(
        1.0,
        "unit record: length that one row's features or logits are clipped to in class means",
        gt=0,
        later=True,
    )

    def __bool__(self) -> bool:
        return self.clip > 0

    @property
    def of_records(self) -> bool:
        """Whether it is single rows that are protected."""
        return bool(self) and self.unit == "record"

    def conceal(self, me: Client, message: Payload, answer: Payload) -> Payload:
        """The answer as it may leave the client."""
        if self.hide_classes:
            answer = for_every_class(me, answer)
        sent = real_tensors(answer)
        origin = origins(sent, message)
        moved = {name: _finite(tensor - origin[name]) for name, tensor in sent.items()}
        length = torch.stack([step.double().square().sum() for step in moved.values()] or [torch.zeros(())])
        norm = float(length.sum().sqrt())
        scale = min(1.0, self.clip / norm) if norm > 0 else 1.0
        draw = partial(seeded_normal, me.rng("privacy")) if self.reproducible else secret_normal
        noisy = {
            name: origin[name]
            + scale * step
            + self.clip * self.noise_multiplier * _like(step, draw(step.shape))
            for name, step in moved.items()
        }
        return rebuilt(answer, noisy)


def _finite(step: Tensor) -> Tensor:
    """The step without what is not finite: one such number would make any length not-a-number, and clip nothing."""
    return torch.where(step.isfinite(), step, torch.zeros_like(step))


def seeded_normal(rng: torch.Generator, shape: torch.Size) -> Tensor:
    """Standard normal numbers in double precision, from a stream that whoever knows the seed can repeat."""
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
