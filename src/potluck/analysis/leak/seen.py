"""What stands in an answer, read by the declarations of its fields: class vectors, counts, weights, logits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from potluck.core.payload import Payload, field_kinds
from potluck.core.schema import Counts, Labels, Like
from potluck.loop.attack.answers import fields_of
from potluck.runs.answers import Kept


def class_vectors(answer: Payload) -> tuple[Tensor, Tensor] | None:
    """One vector per class (rows, labels), where the answer has some."""
    names, labels = fields_of("prototype-swap", type(answer)), _declared(answer, Labels)
    if not names or labels is None:
        return None
    return getattr(answer, names[0]), labels


def class_counts(answer: Payload, classes: int) -> Tensor | None:
    """Samples per class, where the answer tells them."""
    counts, labels = _declared(answer, Counts), _declared(answer, Labels)
    if counts is None:
        return None
    if labels is None:
        return counts if len(counts) == classes else None
    return torch.zeros(classes, dtype=counts.dtype).index_copy(0, labels, counts)


def public_logits(answer: Payload) -> Tensor | None:
    """Logits for public samples: a row for each, and no label."""
    names = fields_of("logit-shuffle", type(answer))
    if not names or _declared(answer, Labels) is not None:
        return None
    rows: Tensor = getattr(answer, names[0])
    return rows


def head_change(kept: Kept, classes: int, part: str = "bias") -> Tensor | None:
    """How the last layer's bias (or weights) of each class moved in training, where a head or a whole model travels."""
    sent, got = kept.answer.flatten()[0], kept.message.flatten()[0]
    for name, tensor in sent.items():
        key = name.partition(".")[2]
        if (key == part or key.endswith(f"head.{part}")) and len(tensor) == classes:
            before = next((old for other, old in got.items() if other.partition(".")[2] == key), None)
            return tensor - before if before is not None and before.shape == tensor.shape else None
    return None


def head_vectors(kept: Kept, classes: int) -> tuple[Tensor, Tensor] | None:
    """What a head's training tells of the mean feature of each class (rows, labels), where the client's own travels.

    A class's weights move by the sum of its samples' features, less a part of everybody's; its bias by how many they
    are, less the same part. The class that lost most holds nothing but that part, so it is taken off, and the quotient
    is a mean feature. Only classes whose bias grew are told of.
    """
    rules = [rule for kind in field_kinds(type(kept.answer)).values() for rule in kind.rules]
    if not any(isinstance(rule, Like) and rule.what in ("head", "model") for rule in rules):
        return None
    moved = head_change(kept, classes)
    weight = None if moved is None else head_change(kept, classes, "weight")
    if moved is None or weight is None:
        return None
    least = moved.argmin()
    labels = torch.nonzero(moved > max(0.0, float(moved[least]))).flatten()
    return (weight[labels] - weight[least]) / (moved[labels] - moved[least])[:, None], labels


def whole_model(kept: Kept, learned: Iterable[str]) -> dict[str, Tensor] | None:
    """The weights of the client's own model, where all of them travel both ways in one form; changes do not."""
    if type(kept.answer) is not type(kept.message):
        return None
    for name, kind in field_kinds(type(kept.answer)).items():
        if any(isinstance(rule, Like) and rule.what == "model" and not rule.changes for rule in kind.rules):
            weights: dict[str, Tensor] = getattr(kept.answer, name)
            return weights if set(learned) <= weights.keys() else None
    return None


def parts(answer: Payload) -> dict[str, Tensor]:
    """The real numbers of an answer under names that mean the same in every answer: classes, or tensors."""
    vectors = class_vectors(answer)
    if vectors is not None:
        return {f"class {label}": row for row, label in zip(vectors[0], vectors[1].tolist(), strict=True)}
    return {name: tensor for name, tensor in answer.flatten()[0].items() if tensor.is_floating_point()}


def _declared(answer: Payload, rule: type[Any]) -> Tensor | None:
    for name, kind in field_kinds(type(answer)).items():
        value = getattr(answer, name)
        if isinstance(value, Tensor) and any(isinstance(one, rule) for one in kind.rules):
            return value
    return None
