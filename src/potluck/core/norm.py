"""Batch normalisation without surprises: single samples, and networks that keep no running statistics."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

Norm = nn.modules.batchnorm._BatchNorm
Network = TypeVar("Network", bound=nn.Module)


def static_norms(model: nn.Module) -> list[Norm]:
    """The batch norms that keep no running statistics and so use those of the batch, even in testing."""
    return [layer for layer in model.modules() if isinstance(layer, Norm) and layer.running_mean is None]


@contextmanager
def norms_at_rest(*models: nn.Module) -> Iterator[None]:
    """Batch norms as in testing, whatever mode the models are in; one without statistics only scales."""
    norms = [layer for model in models for layer in model.modules() if isinstance(layer, Norm)]
    modes = [layer.training for layer in norms]
    static = [layer for model in models for layer in static_norms(model)]
    for layer in norms:
        layer.eval()
    for layer in static:
        _forget(layer)
    try:
        yield
    finally:
        for layer in static:
            layer.running_mean = layer.running_var = None
        for layer, mode in zip(norms, modes, strict=True):
            layer.train(mode)


def with_statistics(model: Network, batches: Iterable[Tensor]) -> Network:
    """A copy in eval mode whose static batch norms carry the mean statistics of `batches`.

    Give batches of two samples or more; without any, the norms only scale. Everything but the norms runs
    as in testing, so dropout and width scalers do not spoil the statistics.
    """
    model = copy.deepcopy(model).eval()
    static = static_norms(model)
    for layer in static:
        _forget(layer)
        layer.track_running_stats, layer.momentum = True, None  # None: the plain mean over batches
        layer.num_batches_tracked = torch.zeros((), dtype=torch.int64)
        layer.train()
    with torch.no_grad():
        for x in batches if static else ():
            model(x)
    return model.eval()


def _forget(layer: Norm) -> None:
    like = layer.weight if layer.weight is not None else torch.empty(0)
    layer.running_mean = torch.zeros(layer.num_features, dtype=like.dtype, device=like.device)
    layer.running_var = torch.ones(layer.num_features, dtype=like.dtype, device=like.device)
