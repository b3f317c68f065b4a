"""How a client trains locally: settings that every method honours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from potluck.core.mixed_precision import Amp
from potluck.core.settings import Settings, setting
from potluck.core.torch_fast import OptimizerName, make_optimizer
from potluck.core.trained import parse_rules

if TYPE_CHECKING:
    from potluck.core.samples import Samples


class LossParts(NamedTuple):
    """The objective of a batch, which is trained on, and the cross-entropy of the client's own model in it."""

    objective: Tensor
    cross_entropy: Tensor | None = None

    @classmethod
    def of(cls, value: Tensor | LossParts, loss: Loss | None = None) -> LossParts:
        """Return what `loss` returned as parts; a plain number is all cross-entropy only where that is the loss."""
        if isinstance(value, LossParts):
            return value
        return cls(value, value if loss is cross_entropy_loss else None)


Loss = Callable[..., Tensor | LossParts]
"""`loss(model, x, y, *given)`: pure, so that an engine may run many clients of one architecture at once."""


@dataclass(frozen=True)
class Training(Settings):
    """Local training, the same for every method of a comparison."""

    epochs: int = setting(5, "passes over a client's training samples in one job", ge=0)
    batch_size: int = setting(16, "samples per optimiser step; 0: all in one batch", ge=0)
    optimizer: OptimizerName = setting("sgd", "what takes the steps")
    lr: float = setting(0.1, "learning rate of the first round", gt=0, le=1e6)
    momentum: float = setting(0.0, "of sgd", ge=0, lt=1)
    weight_decay: float = setting(0.0, "pull of the weights towards 0 in every step", ge=0, le=1e6)
    betas: tuple[float, float] = setting((0.9, 0.999), "decay of adam's and adamw's two moments, in [0, 1)")
    clip_norm: float | None = setting(None, "longest gradient of a step; unset: any", gt=0)
    lr_decay: float = setting(1.0, "factor on the learning rate per round", gt=0, le=10)
    drop_last: bool = setting(False, "leave out a last batch that is not full")
    keep_optimizer: bool = setting(False, "optimiser state survives from round to round")
    amp: Amp = setting(
        "off", "numbers that losses are computed in: off (full precision), bf16 or fp16", later=True
    )
    train: str = setting(
        "all",
        "parts of the clients' models that are trained: all, head, last:N for the head and the N layers before it, or "
        "lora:RANK for the head and adapters; one rule, or one per model: head,all",
        later=True,
    )
    lora_alpha: float | None = setting(
        None, "adapters change weights by lora_alpha / rank · B A; unset: by B A", gt=0, later=True
    )

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {tuple(self.betas)} must both lie in [0, 1)")
        parse_rules(self.train)

    def make_optimizer(self, parameters: Iterable[nn.Parameter | torch.Tensor], lr: float) -> Optimizer:
        """Make a new optimiser over these parameters."""
        return make_optimizer(
            self.optimizer,
            parameters,
            lr,
            momentum=self.momentum,
            betas=self.betas,
            weight_decay=self.weight_decay,
        )

    def rate(self, round_number: int) -> float:
        """Return the learning rate of a round (counted from 1), after the decay per round."""
        return float(self.lr * self.lr_decay ** (round_number - 1))

    def effective_steps(self, steps: int) -> float:
        """Return how often a steady gradient enters the weights in so many steps: more than `steps` with momentum ρ.

        The sum of (1 - ρ^t)/(1 - ρ) over the steps. Adam has no such number and counts its steps.
        """
        momentum = self.momentum if self.optimizer == "sgd" else 0.0
        if momentum == 0:
            return float(steps)
        return float((steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum))


def cross_entropy_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the plain local objective."""
    return F.cross_entropy(model(x), y)


@dataclass(frozen=True)
class FitResult:
    """What local training did: optimiser steps, and means over them of the objective and its cross-entropy."""

    steps: int
    loss: float
    cross_entropy: float | None = None


class LossMeans:
    """Means over the steps of a fit."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.steps = 0
        self.objective = torch.zeros((), dtype=dtype, device=device)
        self.cross_entropy: Tensor | None = torch.zeros_like(self.objective)

    def add(self, value: Tensor | LossParts) -> Tensor:
        """Add what the loss of a step returned; return its objective."""
        parts = LossParts.of(value)
        self.steps += 1
        self.objective += parts.objective.detach()
        if self.cross_entropy is not None and parts.cross_entropy is not None:
            self.cross_entropy += parts.cross_entropy.detach()
        else:
            self.cross_entropy = None
        return parts.objective

    def result(self) -> FitResult:
        """Return the means; the cross-entropy is None where a step had none on record."""
        if not self.steps:
            return FitResult(0, float("nan"))
        cross_entropy = self.cross_entropy
        mean = None if cross_entropy is None else float(cross_entropy) / self.steps
        return FitResult(self.steps, float(self.objective) / self.steps, mean)


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """What `Client.fit` was called with."""

    loss: Loss
    model: nn.Module
    loss_args: tuple[Any, ...] = ()
    epochs: int | None = None
    samples: Samples | None = None
    batch_size: int | None = None
    name: str = "model"
    adjust: Callable[[], None] | None = None
    also: tuple[nn.Parameter, ...] = ()
    after: Callable[[], None] | None = None

    def parts(self, x: Tensor, y: Tensor) -> LossParts:
        """Return the loss of a batch."""
        return LossParts.of(self.loss(self.model, x, y, *self.loss_args, *self.also), self.loss)
