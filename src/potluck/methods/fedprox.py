"""FedProx (Li et al., MLSys 2020): FedAvg whose clients are held near the weights they received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from potluck.core import Client, Tensors, cross_entropy_loss, load_tensors, setting, tensors_of
from potluck.kit import Weights, proximal_term
from potluck.methods.fedavg import FedAvg


@dataclass
class FedProx(FedAvg):
    """FedAvg with the local objective CE + μ/2 · ‖w - w₀‖², where w₀ are the received weights."""

    name: ClassVar[str] = "fedprox"
    summary: ClassVar[str] = "FedAvg with a pull towards the received weights"
    guards_rows: ClassVar[bool] = True

    mu: float = setting(0.1, "strength μ of the pull towards the received weights (FedIN: μ/2 = 0.05)", ge=0)

    def client(self, me: Client, message: Weights) -> Weights:
        """Train near w₀; the pull is part of the loss, so that it reaches an adaptive optimiser's moments."""
        load_tensors(me.model, message.tensors)
        me.fit(proximal_loss, tensors_of(me.model, buffers=False), self.mu)
        return Weights(tensors_of(me.model, buffers=self.buffers))


def proximal_loss(model: nn.Module, x: Tensor, y: Tensor, reference: Tensors, mu: float) -> Tensor:
    """The objective with its true, squared distance."""
    return cross_entropy_loss(model, x, y) + proximal_term(model, reference, mu)
