"""Vision transformers: the two of FedL2G's largest group and a tiny one for a laptop."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from potluck.core.model import ClientModel
from potluck.models.dense import with_dense
from potluck.models.entry import InputSpec, ModelEntry


class ViT(ClientModel):
    """Image patches and a class token through a pre-norm transformer; the token is the representation."""

    def __init__(self, request: InputSpec, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        channels, high, wide = request.shape
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + (high // patch) * (wide // patch), width))
        self.layers = nn.Sequential(*(_layer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, request.classes)
        self.feature_dim = width
        nn.init.trunc_normal_(self.patches.weight, std=math.sqrt(1 / (channels * patch * patch)))
        nn.init.normal_(self.positions, std=0.02)
        if self.patches.bias is not None:
            nn.init.zeros_(self.patches.bias)

    def features(self, x: Tensor) -> Tensor:
        """Return the normalised class token after the last layer."""
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.positions
        normed: Tensor = self.norm(self.layers(x)[:, 0])
        return normed


def _layer(width: int, heads: int) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        width,
        heads,
        4 * width,
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=True,
    )
    for linear in (layer.linear1, layer.linear2):
        nn.init.xavier_uniform_(linear.weight)
        nn.init.normal_(linear.bias, std=1e-6)
    return with_dense(layer)


def _pooled_head(features: int, classes: int) -> nn.Module:
    """Return the head that FedL2G gives to transformers: a hidden layer of the transformer's width."""
    return nn.Sequential(nn.Linear(features, 768), nn.Tanh(), nn.Linear(768, classes))


def _tiny(request: InputSpec) -> ViT:
    """Patches of 4×4, or 2×2 on images below 16×16."""
    patch = 4 if min(request.shape[1:]) >= 16 else 2
    return ViT(request, patch, width=64, depth=4, heads=4)


def _base(patch: int) -> ModelEntry:
    return ModelEntry(
        f"ViT-B/{patch}: 12 layers of width 768 on {patch}×{patch} patches",
        partial(ViT, patch=patch, width=768, depth=12, heads=12),
        min_side=patch,
        multiple=patch,
        pooled_head=_pooled_head,
    )


MODELS = {
    "vit-b-16": _base(16),
    "vit-b-32": _base(32),
    "vit-tiny": ModelEntry(
        "ViT of 4 layers of width 64 on 4×4 patches (2×2 below 16×16)", _tiny, min_side=4, multiple=4
    ),
}
