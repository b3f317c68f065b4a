"""Read what the server received of a client, and hold the result of an audit."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from potluck.attacks.answers import attacked_fields
from potluck.core.payload import Payload, field_kinds
from potluck.core.schema import Counts, Labels, Like
from potluck.runs.answers import KeptAnswer


@dataclass(frozen=True)
class LeakScore:
    """Result of one question: score, chance level, source of the inference, and number of cases."""

    question: str
    score: float
    chance: float
    way: str
    cases: int


@dataclass(frozen=True)
class Reconstruction:
    """Pictures of one class of one client by description; all have values in [0, 1]."""

    client: int
    label: int
    samples: int
    pictures: Mapping[str, Tensor]

    def stored(self) -> dict[str, Any]:
        """Encode as JSON: 8 bits per value, in base64."""
        shape = list(next(iter(self.pictures.values())).shape)
        return {
            "client": self.client,
            "class": self.label,
            "samples": self.samples,
            "shape": shape,
            "pictures": {
                name: base64.b64encode(_bytes(picture)).decode() for name, picture in self.pictures.items()
            },
        }


def _bytes(picture: Tensor) -> bytes:
    return (picture * 255).round().byte().numpy().tobytes()


def read_pictures(entry: Mapping[str, Any]) -> dict[str, np.ndarray[Any, np.dtype[np.uint8]]]:
    """Decode the pictures of a stored entry, `[channels, height, width]` each."""
    return {
        name: np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(entry["shape"])
        for name, text in entry["pictures"].items()
    }


@dataclass
class LeakFindings:
    """Result of an audit; `skipped` has a sentence for each question that was not applicable."""

    scores: list[LeakScore] = field(default_factory=list)
    shown: list[Reconstruction] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def stored(self) -> dict[str, Any]:
        """Encode as JSON."""
        return {
            "scores": [asdict(score) for score in self.scores],
            "skipped": self.skipped,
            "pictures": [entry.stored() for entry in self.shown],
        }


def class_vectors(answer: Payload) -> tuple[Tensor, Tensor] | None:
    """Return one vector per class (rows, labels) where the answer contains them."""
    names, labels = attacked_fields("prototype-swap", type(answer)), _declared(answer, Labels)
    if not names or labels is None:
        return None
    return getattr(answer, names[0]), labels


def class_counts(answer: Payload, classes: int) -> Tensor | None:
    """Return samples per class where the answer contains them."""
    counts, labels = _declared(answer, Counts), _declared(answer, Labels)
    if counts is None:
        return None
    if labels is None:
        return counts if len(counts) == classes else None
    return torch.zeros(classes, dtype=counts.dtype).index_copy(0, labels, counts)


def public_logits(answer: Payload) -> Tensor | None:
    """Return logits for public samples, a row for each."""
    names = attacked_fields("logit-shuffle", type(answer))
    if not names or _declared(answer, Labels) is not None:
        return None
    rows: Tensor = getattr(answer, names[0])
    return rows


def head_change(kept: KeptAnswer, classes: int, part: str = "bias") -> Tensor | None:
    """Return the change of the last layer's bias (or weights) in training, where a head or a model was sent."""
    sent, received = kept.answer.flatten()[0], kept.message.flatten()[0]
    for name, tensor in sent.items():
        key = name.partition(".")[2]
        if (key == part or key.endswith(f"head.{part}")) and len(tensor) == classes:
            before = next((old for other, old in received.items() if other.partition(".")[2] == key), None)
            return tensor - before if before is not None and before.shape == tensor.shape else None
    return None


def head_vectors(kept: KeptAnswer, classes: int) -> tuple[Tensor, Tensor] | None:
    """Estimate the mean feature of each class (rows, labels) from the training of the client's own head.

    A class's weights change by the sum of its samples' features minus a share of all samples' features; its bias by
    the number of its samples minus the same share. The class that lost most shows that share alone; after subtracting
    it, the quotient is a mean feature. Only classes whose bias grew are estimated.
    """
    rules = [rule for kind in field_kinds(type(kept.answer)).values() for rule in kind.rules]
    if not any(isinstance(rule, Like) and rule.what in ("head", "model") for rule in rules):
        return None
    bias = head_change(kept, classes)
    weight = None if bias is None else head_change(kept, classes, "weight")
    if bias is None or weight is None:
        return None
    least = bias.argmin()
    labels = torch.nonzero(bias > max(0.0, float(bias[least]))).flatten()
    return (weight[labels] - weight[least]) / (bias[labels] - bias[least])[:, None], labels


def whole_model(kept: KeptAnswer, learned: Iterable[str]) -> dict[str, Tensor] | None:
    """Return the weights of the client's own model where all of them were sent both ways (not as differences)."""
    if type(kept.answer) is not type(kept.message):
        return None
    for name, kind in field_kinds(type(kept.answer)).items():
        if any(isinstance(rule, Like) and rule.what == "model" and not rule.changes for rule in kind.rules):
            weights: dict[str, Tensor] = getattr(kept.answer, name)
            return weights if set(learned) <= weights.keys() else None
    return None


def comparable_parts(answer: Payload) -> dict[str, Tensor]:
    """Return the float tensors of an answer under names that are comparable between answers: classes, or fields."""
    vectors = class_vectors(answer)
    if vectors is not None:
        return {f"class {label}": row for row, label in zip(vectors[0], vectors[1].tolist(), strict=True)}
    return {name: tensor for name, tensor in answer.flatten()[0].items() if tensor.is_floating_point()}


def _declared(answer: Payload, rule: type[Any]) -> Tensor | None:
    for name, kind in field_kinds(type(answer)).items():
        value = getattr(answer, name)
        if isinstance(value, Tensor) and any(isinstance(each, rule) for each in kind.rules):
            return value
    return None
