"""MOON (Li, He and Song, CVPR 2021): features drawn to the global model's, away from the client's last ones."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from potluck.core import Client, ClientModel, Need, load_tensors, setting, tensors_of
from potluck.kit import Weights
from potluck.methods.fedavg import FedAvg


@dataclass
class Moon(FedAvg):
    """FedAvg with the local objective CE + μ · contrast of features between three models.

    The term is off until a client has trained once, since there is no earlier model to keep away from. The authors'
    projection head is a matter of the models: set `models.feature_dim=256` and `models.projection="mlp"`.
    """

    name: ClassVar[str] = "moon"
    summary: ClassVar[str] = "FedAvg with a contrast between local, global and previous features"

    mu: float = setting(1.0, "weight μ of the contrast", ge=0)
    temperature: float = setting(0.5, "temperature τ of the contrast", gt=0)

    def requires(self) -> frozenset[Need]:
        """Features to compare, and whatever the way of sharing asks."""
        return super().requires() | {Need.FEATURES}

    def client(self, me: Client, message: Weights) -> Weights:
        """Train beside two frozen models: the one received and the one this client ended with last time."""
        load_tensors(me.model, message.tensors)
        if "previous" in me.private:
            received, previous = _frozen(me.model), _frozen(me.model)
            load_tensors(previous, me.private["previous"])
            me.fit(contrastive_loss, received, previous, self.mu, self.temperature)
        else:
            me.fit()
        me.private["previous"] = tensors_of(me.model)
        return Weights(tensors_of(me.model, buffers=self.buffers))


def _frozen(model: ClientModel) -> ClientModel:
    return copy.deepcopy(model).eval().requires_grad_(False)


def contrastive_loss(
    model: ClientModel,
    x: Tensor,
    y: Tensor,
    received: ClientModel,
    previous: ClientModel,
    mu: float,
    temperature: float,
) -> Tensor:
    """Cross-entropy plus the weighted contrast."""
    z = model.features(x)
    term = contrast(z, received.features(x), previous.features(x), temperature)
    return F.cross_entropy(model.head(z), y) + mu * term


def contrast(z: Tensor, received: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """-log(e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ})), averaged over the batch."""
    apart = F.cosine_similarity(z, previous, dim=1) - F.cosine_similarity(z, received, dim=1)
    return F.softplus(apart / temperature).mean()
