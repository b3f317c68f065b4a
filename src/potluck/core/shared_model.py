"""The shared small model: what travels of it, a client's copy of it, its average, and joint training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from potluck.core.client import Client, Fit
from potluck.core.method import Update
from potluck.core.model import ClientModel
from potluck.core.payload import Payload, Tensors
from potluck.core.samples import Samples
from potluck.core.schema import Like
from potluck.core.sharing import Weighting
from potluck.core.toolkit import layerwise_average, load_tensors, sample_weights


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


def average(old: Tensors, updates: Sequence[Update[Any]], parts: Sequence[Tensors], by: Weighting) -> Tensors:
    """Mean of the participants' tensors, by training samples or plain; what nobody sent keeps its value."""
    weights = sample_weights(updates) if by == "samples" else [update.weight for update in updates]
    return layerwise_average(parts, old, weights)


def without_head(tensors: Mapping[str, Tensor]) -> Tensors:
    """The extractor's part of a model's tensors."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}


def fit_together(
    me: Client,
    models: Mapping[str, nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor],
    samples: Samples | None = None,
    after_step: Callable[[], None] | None = None,
) -> Fit:
    """Train several models at once on `loss(x, y)`, each with an optimiser and a gradient clip of its own.

    Losses of several models are summed by the caller: where each stops the gradient at the other models,
    one backward pass gives every model the gradient of its own loss. `after_step` follows every batch.
    """
    optimizers = [me.optimizer(model, name=name) for name, model in models.items()]
    total, steps = torch.zeros((), device=me.task.device, dtype=me.task.dtype), 0
    with me.training_mode(*models.values(), samples=samples):
        for x, y in me.batches(samples=samples, models=models.values()):
            value = loss(x, y)
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.autograd.backward(value)
            for optimizer in optimizers:
                me.apply(optimizer)
            if after_step is not None:
                after_step()
            total += value.detach()
            steps += 1
    return me.report(steps, float(total) / steps if steps else float("nan"))
