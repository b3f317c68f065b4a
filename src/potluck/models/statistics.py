"""Batch-norm statistics measured once, for networks that keep none while they train."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


def with_statistics(model: Network, batches: Iterable[Tensor]) -> Network:
    """A copy in eval mode whose batch norms carry the mean statistics of `batches` (of two samples or more).

    Everything else runs as in testing: a width scaler that were active here would spoil the statistics.
    """
    model = copy.deepcopy(model).eval()
    norms = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.track_running_stats = True
        norm.momentum = None  # the plain mean over batches
        norm.running_mean = torch.zeros(norm.num_features).to(norm.weight)
        norm.running_var = torch.ones(norm.num_features).to(norm.weight)
        norm.num_batches_tracked = torch.zeros((), dtype=torch.long, device=norm.weight.device)
        norm.train()
    with torch.no_grad():
        for x in batches:
            model(x)
    return model.eval()
