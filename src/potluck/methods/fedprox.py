"""FedProx (Li et al., MLSys 2020): FedAvg whose clients are held near the weights they received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from potluck.method import Client, Tensors, kit, setting
from potluck.methods.fedavg import FedAvg


@dataclass
class FedProx(FedAvg):
    """FedAvg with the local objective CE + μ/2 · ‖w - w₀‖², where w₀ are the received weights."""

    name: ClassVar[str] = "fedprox"
    summary: ClassVar[str] = "FedAvg with a pull towards the received weights"

    mu: float = setting(0.1, "strength μ of the pull towards the received weights (FedIN: μ/2 = 0.05)", ge=0)

    def client(self, me: Client, message: kit.Weights) -> kit.Weights:
        """Train near w₀; the pull is part of the loss, so that it reaches an adaptive optimiser's moments."""
        kit.load_tensors(me.model, message.tensors)
        me.fit(proximal_loss, kit.tensors_of(me.model, buffers=False), self.mu)
        return kit.Weights(kit.tensors_of(me.model, buffers=self.buffers))


def proximal_loss(model: nn.Module, x: Tensor, y: Tensor, reference: Tensors, mu: float) -> kit.LossParts:
    """Return the objective h_k with its squared distance (eq. 2)."""
    label_loss = kit.cross_entropy_loss(model, x, y)
    return kit.LossParts(label_loss + kit.proximal_term(model, reference, mu), label_loss)
