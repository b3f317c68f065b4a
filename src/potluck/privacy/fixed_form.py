"""Answers in a fixed form that can be summed: class vectors over all classes, weighted, as whole numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.payload import Payload, PayloadError, Tensors, field_kinds
from potluck.core.schema import Counts, Labels, Like, Shape
from potluck.core.supports import SecureSums, holds
from potluck.core.task import ClientInfo, Task
from potluck.privacy.settings import Privacy
from potluck.wire import MAX_ROWS, bounded_list, integer, string

Role = Literal["held", "counts", "rows", "mean", "total"]
"""What a field is in a sum: a 1 for each class that a client has; samples per class; class vectors, weighted by these;
tensors weighted by client; tensors that add up."""
WHOLE: tuple[Role, ...] = ("held", "counts")
"""The roles whose numbers are whole: they are summed without rounding."""
MAX_PARTS, MAX_SIDES = 100_000, 8

Form = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of the tensors of a fixed form, in the order of their numbers in a vector."""


def field_roles(up: type[Payload], sums: SecureSums) -> dict[str, Role]:
    """Return the role of each field of a payload; raise for a field that cannot be summed."""
    kinds = field_kinds(up)
    rows = {rule.rows for kind in kinds.values() for rule in kind.rules if isinstance(rule, Labels)}
    roles: dict[str, Role] = {}
    for name, kind in kinds.items():
        if any(isinstance(rule, Labels) for rule in kind.rules):
            roles[name] = "held"
        elif any(isinstance(rule, Counts) for rule in kind.rules):
            roles[name] = "counts"
        elif kind.base is dict:
            roles[name] = "mean"
        elif kind.base is not Tensor:
            raise PotluckError(
                f"{up.__name__}.{name} is a single number, which privacy.secure_sums cannot add up."
            )
        elif any(isinstance(rule, Shape) and rule.sizes[0] in rows for rule in kind.rules):
            roles[name] = "rows"
        else:
            roles[name] = sums.others
    return roles


@dataclass(frozen=True)
class Summation:
    """What a client and the server agree on for one sum.

    `total` is the sum of the clients' weights and `clients` their number; both only set the size of a step.
    """

    total: float
    clients: int
    width: int
    range: float

    @property
    def step(self) -> float:
        """Return the size of a step of a weighted number. No sum of `clients` numbers can leave the width."""
        largest = min(2 ** (8 * self.width - 1), 2**53)  # doubles hold no larger whole numbers exactly
        return self.range * self.total / float(largest - self.clients - 1)

    def error(self, senders: int, weight: float) -> float:
        """Return the largest error of an average over senders of this total weight: half a step each."""
        return 0.5 * senders * self.step / weight


def summation(settings: Privacy, total: float, clients: int) -> Summation:
    """Return the parameters of a sum under these settings."""
    return Summation(total, clients, settings.sum_bytes, settings.sum_range)


class SumForms:
    """The fixed form of one method's answers."""

    def __init__(self, method: Method[Any, Any, Any], up: type[Payload], task: Task) -> None:
        assert method.supports.sums is not None
        self.up, self.task, self.roles = up, task, field_roles(up, method.supports.sums)
        self._by_samples = holds(method.supports.max_share, method)

    def weight(self, samples: int) -> float:
        """Return a client's weight in a sum: its samples where they count, else one."""
        counted = self._by_samples or {"counts", "total"} & {*self.roles.values()}
        return float(samples) if counted else 1.0

    # -- on the client --------------------------------------------------------------------------------------

    def spread(self, answer: Payload, samples: int) -> Tensors | None:
        """Return the tensors of an answer in their fixed form, weighted; None for an answer without any content."""
        if not any(answer.flatten()):
            return None
        tensors = {name: tensor.detach().cpu() for name, tensor in answer.flatten()[0].items()}
        labels, counts = self._of_role("held", tensors), self._of_role("counts", tensors)
        spread: Tensors = {}
        for name, value in tensors.items():
            role = self.role(name)
            if role == "held":
                value = torch.ones(len(value), dtype=torch.int64)
            elif role == "rows":
                value = value.double() if counts is None else value.double() * _column(counts, value)
            elif role == "mean":
                value = value.double() * (samples if self._by_samples else 1)
            elif role == "total":
                value = value.double()
            if labels is not None and role in ("held", "counts", "rows"):
                value = value.new_zeros(self.task.num_classes, *value.shape[1:]).index_copy(0, labels, value)
            spread[name] = value
        return spread

    def role(self, name: str) -> Role:
        """Return the role of a tensor by its name in a flattened payload."""
        return self.roles[name.partition(".")[0]]

    def _of_role(self, role: Role, tensors: Mapping[str, Tensor]) -> Tensor | None:
        return next((tensor for name, tensor in tensors.items() if self.role(name) == role), None)

    def quantise(self, tensors: Mapping[str, Tensor], weight: float, how: Summation) -> NDArray[np.uint64]:
        """Return weighted tensors as whole numbers modulo 2^64; raise for numbers beyond `privacy.sum_range`."""
        if not (math.isfinite(how.total) and how.total >= weight and how.clients > 0):
            raise PotluckError("The weights of a secure sum do not add up.")
        parts = list[NDArray[np.int64]]()
        for name, tensor in tensors.items():
            values = tensor.reshape(-1).numpy()
            if self.role(name) not in WHOLE:
                _check_range(name, values, weight, how.range)
                values = np.rint(values / how.step)
            parts.append(values.astype(np.int64))
        return np.concatenate(parts or [np.zeros(0, dtype=np.int64)]).view(np.uint64)

    # -- on the server --------------------------------------------------------------------------------------

    def read_form(self, value: Any, max_bytes: int, width: int) -> Form:
        """Read what a client says of the form of its answer."""
        form, size = list[tuple[str, tuple[int, ...]]](), 0
        for entry in bounded_list(value, "the form of an answer", MAX_PARTS, low=1):
            name, sides = bounded_list(entry, "a part of a form", 2, low=2)
            shape = tuple(
                integer(side, "a size", MAX_ROWS) for side in bounded_list(sides, "a shape", MAX_SIDES)
            )
            name = string(name, "the name of a part", 400)
            if name.partition(".")[0] not in self.roles:
                raise PayloadError(f"{self.up.__name__} has no field {name!r}.")
            size += math.prod(shape) * width
            if size > max_bytes:
                raise PayloadError("The form of an answer is larger than schedule.max_payload_mb.")
            form.append((name, shape))
        if len({name for name, _ in form}) < len(form):
            raise PayloadError("The form of an answer names a part twice.")
        return tuple(form)

    def average(
        self, form: Form, numbers: NDArray[np.int64], how: Summation, members: Sequence[ClientInfo]
    ) -> Payload:
        """Return the payload that a sum stands for: averages over members, or over those that have a class."""
        weight = sum(self.weight(info.samples) for info in members) if self._by_samples else len(members)
        sums = dict(
            zip((name for name, _ in form), _split(numbers, [shape for _, shape in form]), strict=True)
        )
        holders, counts = self._of_role("held", sums), self._of_role("counts", sums)
        labels = None if holders is None else torch.nonzero(holders > 0).flatten()
        result: Tensors = {}
        for name, tensor in sums.items():
            role = self.role(name)
            if role == "held" and labels is not None:
                result[name] = labels
            elif role == "counts":
                result[name] = tensor if labels is None else tensor[labels]
            elif role == "rows":
                if holders is None or labels is None or tensor.shape[:1] != holders.shape:
                    raise PayloadError("The form of an answer has rows without labels.")
                per_class = (holders if counts is None else counts).clamp(min=1)
                result[name] = self._as_declared(
                    name, (how.step * tensor.double() / _column(per_class, tensor))[labels]
                )
            else:
                result[name] = self._as_declared(
                    name, how.step * tensor.double() / (weight if role == "mean" else 1)
                )
        return self.up.unflatten({name: tensor.to(self.task.device) for name, tensor in result.items()}, {})

    def _as_declared(self, name: str, value: Tensor) -> Tensor:
        """Return a tensor in the task's precision; rounding makes no variance negative."""
        rules = field_kinds(self.up)[name.partition(".")[0]].rules
        if name.endswith("running_var") and not any(isinstance(r, Like) and r.changes for r in rules):
            value = value.clamp(min=0)
        return value.to(self.task.dtype)


def _split(numbers: NDArray[np.int64], shapes: Sequence[tuple[int, ...]]) -> Iterator[Tensor]:
    start = 0
    for shape in shapes:
        end = start + math.prod(shape)
        yield torch.from_numpy(numbers[start:end].reshape(shape).copy())
        start = end


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))


def _check_range(name: str, values: NDArray[Any], weight: float, limit: float) -> None:
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())
    largest = max(-low, high) / weight
    if not math.isfinite(largest):
        raise PotluckError(f"{name} holds a value that is not finite.")
    if largest > limit:
        raise PotluckError(
            f"{name} holds {largest:.4g}, beyond privacy.sum_range = {limit:g}; raise it, and privacy.sum_bytes where "
            "numbers would be rounded too coarsely."
        )
