"""Gaussian noise from the operating system's randomness: for what an adversary must not guess."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

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
