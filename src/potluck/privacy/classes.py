"""Answers that do not tell which classes a client has, nor how many samples of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.payload import FieldKind, Payload, field_kinds
from potluck.core.schema import Counts, Labels, Shape


def fill_all_classes(me: Client, answer: Payload) -> Payload:
    """Return the answer with a row for every class, zeros where the client has none, and equal counts for all.

    Rows go by the fields that their payload declares as `Labels`, counts by those it declares as `Counts`.
    """
    kinds = field_kinds(type(answer))
    changes: dict[str, Any] = {}
    for field, kind in kinds.items():
        value = getattr(answer, field)
        for rule in kind.rules if isinstance(value, Tensor) else ():
            if isinstance(rule, Labels):
                changes |= _spread(answer, kinds, rule.rows, value, me.task.num_classes)
                changes[field] = torch.arange(me.task.num_classes, device=value.device)
    for field, kind in kinds.items():
        value = changes.get(field, getattr(answer, field))
        for rule in kind.rules if isinstance(value, Tensor) else ():
            if isinstance(rule, Counts):
                changes[field] = torch.full_like(value, _alike(me, rule.least))
    return replace(answer, **changes)


def reveals_classes(kind: type[Payload]) -> bool:
    """Return whether payloads of this type say which classes a client has, or how many samples of them."""
    rules = (rule for field in field_kinds(kind).values() for rule in field.rules)
    return any(isinstance(rule, Labels | Counts) for rule in rules)


def _spread(
    answer: Payload, kinds: dict[str, FieldKind], rows: str, labels: Tensor, classes: int
) -> dict[str, Tensor]:
    """Return every tensor that has a row per label, laid out by class."""
    tensors: dict[str, Tensor] = {}
    for field, kind in kinds.items():
        value = getattr(answer, field)
        if isinstance(value, Tensor) and any(isinstance(r, Shape) and r.sizes[0] == rows for r in kind.rules):
            tensors[field] = value.new_zeros(classes, *value.shape[1:]).index_copy(0, labels, value)
    return tensors


def _alike(me: Client, least: int) -> int:
    """Return the count that every class gets: the server knows no more than the client's number of samples."""
    samples, classes = me.info.samples, me.task.num_classes
    if least * classes > samples:
        raise PotluckError(
            f"privacy.hide_classes needs at least {least * classes} training samples for counts of {classes} classes, "
            f"client {me.info.name!r} has {samples}; leave the client out, or choose a method that sends no counts."
        )
    return max(least, samples // classes)
