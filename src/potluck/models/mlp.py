"""Dense networks for tables; any input shape is flattened."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from potluck.core.model import ClientModel, he_normal
from potluck.models.dense import Dense
from potluck.models.entry import InputSpec, ModelEntry


class MLP(ClientModel):
    """Dense layers with ReLU; the last hidden layer is the representation."""

    def __init__(self, request: InputSpec, widths: tuple[int, ...]) -> None:
        super().__init__()
        inputs = math.prod(request.shape)
        self.layers = nn.Sequential()
        for width in widths:
            self.layers.append(Dense(inputs, width)).append(nn.ReLU())
            inputs = width
        self.apply(he_normal)
        self.head = nn.Linear(inputs, request.classes)
        self.feature_dim = inputs

    def features(self, x: Tensor) -> Tensor:
        """Return the output of the last hidden layer."""
        last: Tensor = self.layers(torch.flatten(x, 1))
        return last


_WIDTHS: tuple[tuple[int, ...], ...] = ((64,), (128, 64), (256, 128, 64))

MODELS = {
    f"mlp-{number}": ModelEntry(
        f"dense layers {', '.join(map(str, widths))} on flat input, 64 features",
        partial(MLP, widths=widths),
        kind="any",
    )
    for number, widths in enumerate(_WIDTHS, start=1)
}
