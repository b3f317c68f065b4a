"""Bringing features of different sizes to one common size."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.errors import PotluckError, unknown
from potluck.core.model import ClientModel, he_normal
from potluck.models.dense import Dense

Projection = Literal["linear", "mlp", "pool"]


class Pool(nn.Module):
    """Average neighbouring features, or repeat them when there are fewer, to a given number of features."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, any]` to `[batch, size]`."""
        return F.adaptive_avg_pool1d(x.unsqueeze(1), self.size).squeeze(1)


def projection_layer(kind: str, inputs: int, outputs: int) -> nn.Module:
    """From `inputs` to `outputs` features: a learned layer (`linear`), two (`mlp`), or by averaging (`pool`).

    Learned ones begin as the zoo's own layers do, or the gradients of all that lies before them would fade.
    """
    if outputs < 1:
        raise PotluckError(f"feature_dim is {outputs}; it must be a positive number of features.")
    if kind == "pool":
        return Pool(outputs)
    if kind == "linear":
        return Dense(inputs, outputs).apply(he_normal)
    if kind == "mlp":
        return nn.Sequential(Dense(inputs, inputs), nn.ReLU(), Dense(inputs, outputs)).apply(he_normal)
    raise unknown("projection", kind, ("linear", "mlp", "pool"))


class Projected(ClientModel):
    """A network whose features pass through a projection and whose head is built for the new size."""

    def __init__(self, base: ClientModel, projection: nn.Module, head: nn.Module, feature_dim: int) -> None:
        super().__init__()
        base.head = nn.Identity()
        self.base = base
        self.projection = projection
        self.head = head
        self.feature_dim = feature_dim

    def features(self, x: Tensor) -> Tensor:
        """Return the base's features, projected."""
        projected: Tensor = self.projection(self.base.features(x))
        return projected

    @property
    def top_modules(self) -> tuple[str, ...]:
        """The projection to the common feature size, and the head."""
        return ("projection", "head")

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """The base's stages."""
        return self.base.stages

    def pool(self, x: Tensor) -> Tensor:
        """Return the base's pooling, projected."""
        projected: Tensor = self.projection(self.base.pool(x))
        return projected
