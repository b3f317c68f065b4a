"""The plain form of an answer: fields of their declared kind, ordinary tensors, sane numbers, a bounded size.

An answer comes from another party. These checks run before anything computes with it, so they may not raise
anything but `PayloadError`, whatever stands in its fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from potluck.core.payload import FieldKind, Payload, PayloadError, Scalar, field_kinds

LARGEST = 1e9
"""No feature, logit or weight of a healthy network is larger; far beyond, sums overflow into not-a-number."""

SCALARS: dict[type, tuple[type[int] | type[float], ...]] = {int: (int,), float: (int, float)}


def check_form(payload: Payload, device: torch.device, max_bytes: int | None = None) -> None:
    """Refuse a payload whose fields are not tensors and numbers as declared, or that is too large."""
    name, size = type(payload).__name__, 0
    for field, kind in field_kinds(type(payload)).items():
        for label, value in _entries(f"{name}.{field}", getattr(payload, field), kind):
            if isinstance(value, Tensor):
                _check_tensor(label, value, device)
                size += value.numel() * value.element_size()
            else:
                size += 8
    # Sizes are known before values are looked at: a broadcast tensor can be larger than any memory.
    if max_bytes is not None and size > max_bytes:
        raise PayloadError(
            f"{name} is {size / 2**20:.1f} MB, more than schedule.max_payload_mb = {max_bytes / 2**20:g}."
        )


def _entries(name: str, value: Any, kind: FieldKind) -> Iterator[tuple[str, Tensor | Scalar]]:
    """The tensors or the number in a field, each under its full name."""
    if value is None and kind.optional:
        return
    if kind.base is dict:
        if not isinstance(value, Mapping):
            raise PayloadError(f"{name} must be a dict of tensors, not {_kind(value)}.")
        for key, entry in value.items():
            if not isinstance(key, str) or not isinstance(entry, Tensor):
                raise PayloadError(f"{name} must map names to tensors, not {_kind(key)} to {_kind(entry)}.")
            yield f"{name}.{key}", entry
    elif kind.base is Tensor:
        if not isinstance(value, Tensor):
            raise PayloadError(f"{name} must be a tensor, not {_kind(value)}.")
        yield name, value
    elif isinstance(value, SCALARS[kind.base]) and not isinstance(value, bool):
        yield name, value
    else:
        raise PayloadError(f"{name} must be {kind.base.__name__}, not {_kind(value)}.")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _check_tensor(name: str, tensor: Tensor, device: torch.device) -> None:
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        raise PayloadError(f"{name} must be a plain dense tensor.")
    if tensor.is_quantized or tensor.is_complex():
        raise PayloadError(f"{name} must hold real numbers, not {tensor.dtype}.")
    if tensor.device.type not in ("cpu", device.type):
        raise PayloadError(f"{name} lies on {tensor.device.type!r}, where this server cannot read it.")
    if tensor.requires_grad:
        raise PayloadError(f"{name} carries a gradient; send a detached copy.")


def check_numbers(name: str, value: Tensor | Scalar) -> None:
    """Refuse what is not finite or absurdly large; bounds hold for real numbers only, ids have their own."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            low, high = torch.aminmax(value)
            _check_extremes(name, float(low), float(high))
    else:
        _check_extremes(name, value, value)


def _check_extremes(name: str, low: Scalar, high: Scalar) -> None:
    if low != low or high != high or abs(low) == float("inf") or abs(high) == float("inf"):
        raise PayloadError(f"{name} holds a value that is not finite.")
    if max(abs(low), abs(high)) > LARGEST:
        raise PayloadError(f"{name} holds a number beyond ±{LARGEST:g}.")
