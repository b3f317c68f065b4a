"""The shared small model: what travels of it, a client's copy of it, its average, and joint training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from potluck.core.client import Client
from potluck.core.model import ClientModel, load_tensors
from potluck.core.payload import Payload, Tensors
from potluck.core.schema import Like


@dataclass(frozen=True)
class SharedWeights(Payload):
    """Tensors of the shared small model, down to a client or up from it."""

    tensors: Annotated[Tensors, Like("shared", subset=True)]


def own_copy(me: Client, tensors: Mapping[str, Tensor]) -> ClientModel:
    """The client's own shared model, set to what was received; BatchNorm statistics not sent stay its own."""
    model = me.module("shared", me.task.shared_model)
    assert isinstance(model, ClientModel)
    load_tensors(model, tensors)
    return model


def as_received(me: Client, tensors: Mapping[str, Tensor] | None) -> ClientModel:
    """The shared model for prediction: with these tensors, or as training left it. The client's stays as it is."""
    model = copy.deepcopy(me.module("shared", me.task.shared_model, keep=False)).eval()
    assert isinstance(model, ClientModel)
    load_tensors(model, tensors or {})
    return model


def without_head(tensors: Mapping[str, Tensor]) -> Tensors:
    """The extractor's part of a model's tensors."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
