"""How a client trains locally: settings that every method honours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer


@dataclass(frozen=True)
class Training:
    """Optimiser and batching. `batch_size=0` means the whole training set in one batch."""

    epochs: int = 5
    batch_size: int = 16
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    clip_norm: float | None = None
    lr_decay: float = 1.0
    drop_last: bool = False
    keep_optimizer: bool = False

    def make_optimizer(self, parameters: Iterable[nn.Parameter | torch.Tensor], lr: float) -> Optimizer:
        """A fresh optimiser over these parameters."""
        if self.optimizer == "sgd":
            return SGD(parameters, lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = Adam if self.optimizer == "adam" else AdamW
        return kind(parameters, lr, betas=self.betas, weight_decay=self.weight_decay)

    def rate(self, round_number: int) -> float:
        """The learning rate of a round (counted from 1), after the decay per round."""
        return float(self.lr * self.lr_decay ** (round_number - 1))

    def effective_steps(self, steps: int) -> float:
        """How often a steady gradient enters the weights in so many steps: more than `steps` with momentum ρ.

        The sum of (1 - ρ^t)/(1 - ρ) over the steps. Adam has no such number and counts its steps.
        """
        momentum = self.momentum if self.optimizer == "sgd" else 0.0
        if momentum == 0:
            return float(steps)
        return float((steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum))
