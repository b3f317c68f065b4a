"""A header shared by all clients while extractors stay private: its message, its mean, its test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from potluck.core.client import Client
from potluck.core.method import Predictor, Update
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Like
from potluck.core.sharing import ALL, Weighting, average_groups
from potluck.core.task import Task, travels

PREFIX = "head."


@dataclass(frozen=True)
class Header(Payload):
    """The weights of a header, in either direction."""

    weights: Annotated[Tensors, Like("head")]


def initial_header(task: Task) -> Tensors:
    """A common first header: that of the first architecture's common first weights."""
    architecture = next(iter(task.architectures.values()))
    return {
        name.removeprefix(PREFIX): tensor.clone()
        for name, tensor in architecture.initial.items()
        if name.startswith(PREFIX) and travels(name)
    }


def average_headers(
    header: Tensors, updates: Sequence[Update[Any]], headers: Sequence[Tensors], weighting: Weighting
) -> Tensors:
    """θ ← Σ ω_k θ_k over the answers, weighted by training samples or all alike."""
    return average_groups({ALL: header}, updates, headers, weighting)[ALL]


def with_header(me: Client, header: Mapping[str, Tensor]) -> Predictor:
    """The client's own extractor under another header; the client is left as it is."""
    return me.predictor({PREFIX + name: tensor for name, tensor in header.items()})
