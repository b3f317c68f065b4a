"""FedMRL (Yi et al., NeurIPS 2024): features of a small shared and a large private model, nested in each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck.method import (
    Client,
    ClientInfo,
    ClientModel,
    Context,
    Method,
    Need,
    Predictor,
    SecureSums,
    Supports,
    Tensors,
    Update,
    kit,
    setting,
)


@dataclass
class FedMRL(Method[Tensors, kit.SharedWeights, kit.SharedWeights]):
    """A private projector fuses both models' features; the small head reads the first of the fused features."""

    name: ClassVar[str] = "fedmrl"
    summary: ClassVar[str] = "nested features of a private large and a shared small model"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FEATURES, Need.SHARED_MODEL, Need.SMALLER_FEATURES})
    supports: ClassVar[Supports] = Supports(
        robust="the small model's weights", max_share={"weight": "samples"}, sums=SecureSums()
    )

    weight: kit.Weighting = setting(
        "samples", "how clients count in the mean: by training samples, or all alike"
    )
    buffers: bool = setting(True, "average BatchNorm statistics as well")
    predict_with: Literal["fused-large", "fused-small", "large", "small"] = setting(
        "fused-large",
        "what is tested: a head on the fused features (the paper: the large one), or one model",
    )

    def init_server(self, ctx: Context) -> Tensors:
        """Draw one random small model for all."""
        return kit.tensors_of(ctx.task.shared_model(), buffers=self.buffers)

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> kit.SharedWeights:
        """Return the small model, features and head."""
        return kit.SharedWeights(state)

    def client(self, me: Client, message: kit.SharedWeights) -> kit.SharedWeights:
        """Train the large model, the small model and the projector on the sum of both heads' losses."""
        small = kit.load_shared_model(me, message.tensors)
        projector = me.module("projector", _projector(me, small))

        def loss(x: Tensor, y: Tensor) -> kit.LossParts:
            fused = fuse(projector, small.features(x), me.model.features(x))
            large_scores, small_scores = both_heads(me.model.head, small, fused)
            label_loss = cross_entropy(large_scores, y)
            return kit.LossParts(label_loss + cross_entropy(small_scores, y), label_loss)

        me.fit_models({"model": me.model, "shared": small, "projector": projector}, loss)
        return kit.SharedWeights(kit.tensors_of(small, buffers=self.buffers))

    def server(self, state: Tensors, updates: Sequence[Update[kit.SharedWeights]], ctx: Context) -> Tensors:
        """θ ← Σ n_k/n · θ_k over the participants."""
        return kit.average(ctx, state, updates, "tensors", by=self.weight)

    def predict(self, me: Client, message: kit.SharedWeights | None) -> Predictor:
        """Return the large head on the fused features, with the small model as trained or as just received."""
        if self.predict_with == "large":
            return me.model
        small = kit.copy_shared_model(me, None if message is None else message.tensors)
        if self.predict_with == "small":
            return small
        projector = me.module("projector", _projector(me, small), keep=False)
        parts = {"large": me.model, "small": small, "projector": projector}
        return FusedLarge(parts) if self.predict_with == "fused-large" else FusedSmall(parts)


class FusedLarge(kit.CombinedModel):
    """The large head on both extractors' features, projected."""

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        return both_heads(self.network("large").head, self.network("small"), self.fused(x))[0]

    def fused(self, x: Tensor) -> Tensor:
        """Return the projected features."""
        features = self.network("small").features(x), self.network("large").features(x)
        return fuse(self.models["projector"], *features)


class FusedSmall(FusedLarge):
    """The small head on the first of the fused features."""

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        return both_heads(self.network("large").head, self.network("small"), self.fused(x))[1]


def _projector(me: Client, small: ClientModel) -> Callable[[], nn.Module]:
    large_size = me.model.feature_dim
    return lambda: nn.Linear(small.feature_dim + large_size, large_size)


def fuse(projector: nn.Module, small_features: Tensor, large_features: Tensor) -> Tensor:
    """Return P([z_small; z_large]), as wide as the large model's features."""
    fused: Tensor = projector(torch.cat([small_features, large_features], dim=1))
    return fused


def both_heads(large_head: nn.Module, small: ClientModel, fused: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores of the large head on all fused features and of the small head on the first d₁ of them."""
    return large_head(fused), small.head(fused[:, : small.feature_dim])
