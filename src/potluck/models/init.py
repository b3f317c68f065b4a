"""How layers take their first weights."""

from __future__ import annotations

from torch import nn


def he_normal(layer: nn.Module) -> None:
    """He's initialisation for a layer followed by ReLU, with zero bias.

    Torch's own default lets the signal fade from layer to layer, which costs a small client with few
    batches most of its first rounds. Apply it before the head is added: nothing rectifies the class scores.
    Layers under batch norm do better with the default, as larger weights make their steps relatively smaller.
    """
    if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
