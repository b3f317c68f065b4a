"""Models computed with other tensors, and single gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


class _Call(nn.Module):
    """Makes any function of a model a forward pass, so that its tensors can be replaced for one call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.model, *arguments)


def call_with(
    model: nn.Module, tensors: Mapping[str, Tensor], function: Callable[..., Any], *arguments: Any
) -> Any:
    """`function(model, *arguments)` as it would be with some of the model's tensors replaced."""
    renamed = {f"model.{name}": tensor for name, tensor in tensors.items()}
    return functional_call(_Call(model), renamed, (function, *arguments))


def sgd_step(module: nn.Module, loss: Tensor, lr: float) -> None:
    """One plain gradient step on a module's parameters."""
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(lr * gradient)
