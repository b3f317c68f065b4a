"""MOON (Li, He and Song, CVPR 2021): features drawn to the global model's, away from the client's last ones."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from potluck.method import Client, ClientModel, Need, kit, setting
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

    def client(self, me: Client, message: kit.Weights) -> kit.Weights:
        """Train beside two frozen models: the one received and the one this client ended with last time."""
        kit.load_tensors(me.model, message.tensors)
        if "previous" in me.private:
            received, previous = _frozen_copy(me.model), _frozen_copy(me.model)
            kit.load_tensors(previous, me.private["previous"])
            me.fit(contrastive_loss, received, previous, self.mu, self.temperature)
        else:
            me.fit()
        me.private["previous"] = kit.tensors_of(me.model)
        return kit.Weights(kit.tensors_of(me.model, buffers=self.buffers))

    def requires(self) -> frozenset[Need]:
        """Return features to compare, and what the way of sharing needs."""
        return super().requires() | {Need.FEATURES}


def contrastive_loss(
    model: ClientModel,
    x: Tensor,
    y: Tensor,
    received: ClientModel,
    previous: ClientModel,
    mu: float,
    temperature: float,
) -> kit.LossParts:
    """Return cross-entropy plus the weighted contrast."""
    z = model.features(x)
    term = contrast(z, received.features(x), previous.features(x), temperature)
    label_loss = F.cross_entropy(model.head(z), y)
    return kit.LossParts(label_loss + mu * term, label_loss)


def contrast(z: Tensor, received: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """Return -log(e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ})), averaged over the batch."""
    difference = F.cosine_similarity(z, previous, dim=1) - F.cosine_similarity(z, received, dim=1)
    return F.softplus(difference / temperature).mean()


def _frozen_copy(model: ClientModel) -> ClientModel:
    return copy.deepcopy(model).eval().requires_grad_(False)
