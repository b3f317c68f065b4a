"""A head or a small model shared by all clients: its payload, its copies on a client, its extractor's tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from potluck.core.client import Client
from potluck.core.method import Predictor
from potluck.core.model import ClientModel, is_transferable, load_tensors, tensors_of
from potluck.core.needs import Need
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Like
from potluck.core.task import Task

PREFIX = "head."
HEAD_NEEDS = frozenset({Need.FEATURES, Need.EQUAL_FEATURES, Need.EQUAL_HEADS, Need.LINEAR_HEADS})
"""What sharing a linear head that the server trains, or trains under, needs."""


@dataclass(frozen=True)
class Head(Payload):
    """The weights of a head, in either direction."""

    weights: Annotated[Tensors, Like("head")]


@dataclass(frozen=True)
class OptionalHead(Payload):
    """The weights of a head, or none where the receiver keeps its own."""

    weights: Annotated[Tensors, Like("head")] | None


def initial_head(task: Task) -> Tensors:
    """Return a common first head: that of the first architecture's common first weights."""
    architecture = next(iter(task.architectures.values()))
    return {
        name.removeprefix(PREFIX): tensor.clone()
        for name, tensor in architecture.initial.items()
        if name.startswith(PREFIX) and is_transferable(name)
    }


def predictor_with_head(me: Client, head: Mapping[str, Tensor]) -> Predictor:
    """Return the client's own extractor under another head; the client does not change."""
    return me.predictor({PREFIX + name: tensor for name, tensor in head.items()})


def mix_head(me: Client, received: Mapping[str, Tensor], own_share: float) -> Tensors:
    """Return the received head, mixed with this share of the client's own."""
    if not own_share:
        return dict(received)
    own = tensors_of(me.model.head)
    return {name: torch.lerp(tensor, own[name], own_share) for name, tensor in received.items()}


@dataclass(frozen=True)
class SharedWeights(Payload):
    """Tensors of the shared small model, down to a client or up from it."""

    tensors: Annotated[Tensors, Like("shared", subset=True)]


def load_shared_model(me: Client, tensors: Mapping[str, Tensor]) -> ClientModel:
    """Return the client's shared model with received tensors loaded; BatchNorm statistics not sent stay its own."""
    model = me.module("shared", me.task.shared_model)
    assert isinstance(model, ClientModel)
    load_tensors(model, tensors)
    return model


def copy_shared_model(me: Client, tensors: Mapping[str, Tensor] | None) -> ClientModel:
    """Return a copy of the client's shared model for prediction, with these tensors or as training left it."""
    model = copy.deepcopy(me.module("shared", me.task.shared_model, keep=False)).eval()
    assert isinstance(model, ClientModel)
    load_tensors(model, tensors or {})
    return model


def extractor_tensors(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return a model's tensors without its head's."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}
