"""A head shared by all clients while extractors stay private: its message, its mean, its test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from potluck.core.client import Client
from potluck.core.method import Predictor
from potluck.core.model import travels
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Like
from potluck.core.task import Task

PREFIX = "head."


@dataclass(frozen=True)
class Head(Payload):
    """The weights of a head, in either direction."""

    weights: Annotated[Tensors, Like("head")]


def initial_head(task: Task) -> Tensors:
    """A common first head: that of the first architecture's common first weights."""
    architecture = next(iter(task.architectures.values()))
    return {
        name.removeprefix(PREFIX): tensor.clone()
        for name, tensor in architecture.initial.items()
        if name.startswith(PREFIX) and travels(name)
    }


def with_head(me: Client, head: Mapping[str, Tensor]) -> Predictor:
    """The client's own extractor under another head; the client is left as it is."""
    return me.predictor({PREFIX + name: tensor for name, tensor in head.items()})
