"""Torch's optimisers with a step in one pass over memory (`fused`), made safe for tensors of any layout.

Torch's fused steps go through the memory of a parameter, its gradient and its moments side by side. Where one of them
is laid out otherwise than the parameter (channels last, or a gradient set by hand), they silently mix numbers up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer


class _Aligned(Optimizer):
    """Lays gradients and moments out as their parameters are."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of the optimiser."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = _like(parameter, parameter.grad)
        return super().step(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Become the optimiser that `state_dict` described."""
        super().load_state_dict(state_dict)
        for parameter, moments in self.state.items():
            for name, value in moments.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    moments[name] = _like(parameter, value)


class FusedSGD(_Aligned, SGD):
    """SGD."""


class FusedAdam(_Aligned, Adam):
    """Adam."""


class FusedAdamW(_Aligned, AdamW):
    """Adam with weight decay apart."""


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    return value if value.stride() == parameter.stride() else torch.empty_like(parameter).copy_(value)
