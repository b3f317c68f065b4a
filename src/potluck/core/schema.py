"""Declarations of payload fields beyond their types, and the check of an answer against them.

Annotate a field: `means: Annotated[Tensor, Shape("rows", "features")]`. Sizes named `features` and
`classes` come from the task, `rows` (or any other name) must be the same wherever it stands in one payload.

An answer comes from another party. Its plain form (kinds of fields, dense tensors, sane numbers, a bounded size) is
checked before anything computes with it, and no check raises anything but `PayloadError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from potluck.core.model import is_transferable
from potluck.core.payload import FieldKind, Payload, PayloadError, Scalar, Tensors, field_kinds
from potluck.core.task import ClientInfo, Task


@dataclass(frozen=True)
class Shape:
    """A tensor of these sizes; a number is exact, a name is looked up or bound, `...` at the end is any more."""

    sizes: tuple[int | str | EllipsisType, ...]

    def __init__(self, *sizes: int | str | EllipsisType) -> None:
        object.__setattr__(self, "sizes", sizes)


@dataclass(frozen=True)
class Labels:
    """A vector of distinct class ids within the task's classes, as long as `rows` elsewhere."""

    rows: str = "rows"


@dataclass(frozen=True)
class Range:
    """Numbers (a scalar, or every entry of a tensor) between `low` and `high`."""

    low: float
    high: float = float("inf")


@dataclass(frozen=True)
class Counts:
    """Whole numbers of training samples: none below `least`, together no more than the client registered."""

    least: int = 0


@dataclass(frozen=True)
class Integers:
    """Whole numbers that are neither class ids nor counts, such as the numbers of public samples."""


@dataclass(frozen=True)
class Like:
    """A dict of tensors with names and shapes of a known thing: `model`, `any model`, `head` or `shared`.

    `model` is the architecture of the client that answers, `any model` whichever of the task's fits; with
    `subset` some names may be left out. `changes` says that differences travel, so that even a variance may
    be negative.
    """

    what: str
    subset: bool = False
    changes: bool = False


def check_payload(
    payload: Payload,
    declared: type[Payload],
    task: Task,
    client: ClientInfo,
    *,
    max_bytes: int | None = None,
) -> None:
    """Raise `PayloadError` for a payload that does not match its declared type."""
    name = declared.__name__
    if type(payload) is not declared:
        raise PayloadError(f"Expected a {name}, got a {type(payload).__name__}.")
    check_form(payload, task.device, max_bytes)
    sizes = {"classes": task.num_classes}
    if task.feature_dim is not None:
        sizes["features"] = task.feature_dim
    for field, kind in field_kinds(declared).items():
        value = getattr(payload, field)
        if value is None:
            continue
        _check_dtype(f"{name}.{field}", value, kind.rules, task)
        if isinstance(value, int | float):
            check_finite(f"{name}.{field}", value)
        for rule in kind.rules:
            _check_rule(f"{name}.{field}", rule, value, sizes, task, client)
    for key, tensor in payload.flatten()[0].items():
        check_finite(f"{name}.{key}", tensor)
    payload.check(task, client)


def _check_dtype(name: str, value: object, rules: tuple[object, ...], task: Task) -> None:
    """Class ids and counts are int64, everything else has the task's precision (see `_check_like` for models)."""
    if isinstance(value, Tensor):
        integral = any(isinstance(rule, Labels | Counts | Integers) for rule in rules)
        _check_same_dtype(name, value, torch.int64 if integral else task.dtype)
    elif isinstance(value, Mapping) and not any(isinstance(rule, Like) for rule in rules):
        for key, tensor in value.items():
            _check_same_dtype(f"{name}.{key}", tensor, task.dtype)


def _check_same_dtype(name: str, tensor: Tensor, expected: torch.dtype) -> None:
    if tensor.dtype != expected:
        raise PayloadError(f"{name} must be {expected}, not {tensor.dtype}.")


def _check_rule(
    name: str, rule: object, value: object, sizes: dict[str, int], task: Task, client: ClientInfo
) -> None:
    if isinstance(rule, Shape) and isinstance(value, Tensor):
        _check_shape(name, value, rule.sizes, sizes)
    elif isinstance(rule, Labels) and isinstance(value, Tensor):
        _check_shape(name, value, (rule.rows,), sizes)
        if len(value) and (value.min() < 0 or value.max() >= task.num_classes):
            raise PayloadError(f"{name} holds a class id outside 0…{task.num_classes - 1}.")
        if len(torch.unique(value)) != len(value):
            raise PayloadError(f"{name} names a class twice.")
    elif isinstance(rule, Counts) and isinstance(value, Tensor):
        # Each count first: a sum of huge numbers could overflow.
        outside = bool(((value < rule.least) | (value > client.samples)).any())
        if outside or int(value.sum()) > client.samples:
            raise PayloadError(
                f"{name} must be counts from {rule.least} that sum to at most the client's {client.samples} samples."
            )
    elif isinstance(rule, Range) and isinstance(value, Tensor | int | float):
        numbers = torch.as_tensor(value)
        if bool(((numbers < rule.low) | (numbers > rule.high)).any()):
            raise PayloadError(f"{name} must lie between {rule.low:g} and {rule.high:g}.")
    elif isinstance(rule, Like) and isinstance(value, Mapping):
        _check_like(name, dict(value), rule, task, client)


def _check_shape(
    name: str, value: Tensor, dimensions: tuple[int | str | EllipsisType, ...], sizes: dict[str, int]
) -> None:
    text = " × ".join("…" if size is ... else str(size) for size in dimensions)
    named = [size for size in dimensions if not isinstance(size, EllipsisType)]
    if value.dim() < len(named) or (value.dim() > len(named) and len(named) == len(dimensions)):
        raise PayloadError(f"{name} has shape {tuple(value.shape)}, expected {text}.")
    for size, want in zip(value.shape, named, strict=False):
        expected = want if isinstance(want, int) else sizes.setdefault(want, size)
        if size != expected:
            raise PayloadError(
                f"{name} has shape {tuple(value.shape)}, expected {text} with {want} = {expected}."
            )


def _check_like(name: str, value: Tensors, rule: Like, task: Task, client: ClientInfo) -> None:
    expected = _SHAPES[rule.what](task, client, value)
    if surplus := sorted(set(value) - set(expected)):
        raise PayloadError(f"{name} has an unknown tensor {surplus[0]!r}.")
    if not rule.subset and (missing := sorted(set(expected) - set(value))):
        raise PayloadError(f"{name} lacks the tensor {missing[0]!r}.")
    initial = task.architectures[client.architecture].initial
    for key, tensor in value.items():
        if tuple(tensor.shape) != expected[key]:
            raise PayloadError(f"{name}.{key} has shape {tuple(tensor.shape)}, expected {expected[key]}.")
        first = initial.get(key)  # a buffer of integers keeps its own type
        dtype = task.dtype if first is None or first.is_floating_point() else first.dtype
        _check_same_dtype(f"{name}.{key}", tensor, dtype)
        # A negative variance would turn every receiver's outputs into not-a-number.
        if key.endswith("running_var") and not rule.changes and bool((tensor < 0).any()):
            raise PayloadError(f"{name}.{key} is a variance and must not be negative.")


Shapes = Mapping[str, tuple[int, ...]]


def _any_model(task: Task, client: ClientInfo, value: Mapping[str, Tensor]) -> Shapes:
    value_shapes = {name: tuple(tensor.shape) for name, tensor in value.items()}
    shapes = [architecture.shapes for architecture in task.architectures.values()]
    return value_shapes if value_shapes in shapes else task.architectures[client.architecture].shapes


_SHAPES: dict[str, Callable[[Task, ClientInfo, Mapping[str, Tensor]], Shapes]] = {
    "model": lambda task, client, value: task.architectures[client.architecture].shapes,
    "any model": _any_model,
    "head": lambda task, client, value: {
        name: shape
        for name, shape in task.architectures[client.architecture].head.items()
        if is_transferable(name)
    },
    "shared": lambda task, client, value: task.shared_shapes(),
}


# -- the plain form -----------------------------------------------------------------------------------------

LARGEST = 1e9
"""No feature, logit or weight of a healthy network is larger; far beyond, sums overflow into not-a-number."""

SCALARS: dict[type, tuple[type[int] | type[float], ...]] = {int: (int,), float: (int, float)}


def check_form(payload: Payload, device: torch.device, max_bytes: int | None = None) -> None:
    """Raise for a payload whose fields are not tensors and numbers as declared, or that is too large."""
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
    """Yield the tensors or the number in a field, each under its full name."""
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


def check_finite(name: str, value: Tensor | Scalar) -> None:
    """Raise for real numbers that are not finite or larger than `LARGEST`."""
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
