"""Predictors that are more than one network, as plain modules: they can be saved, loaded and exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core.classwise import ClassTable, nearest_row

Models = Mapping[str, Any]


def _mixed(models: Models, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """pFedAFM: a header on two extractors' features, mixed entry by entry."""
    alpha, large = tensors["alpha"], models["large"]
    features = (1 - alpha) * models["small"].features(x) + alpha * large.features(x)
    scores: Tensor = large.head(features)
    return scores


def _small_extractor(models: Models, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """One model's header on another's extractor."""
    scores: Tensor = models["large"].head(models["small"].features(x))
    return scores


def _ensemble(models: Models, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """FedAPEN: a weighted sum of two models' scores."""
    share = tensors["share"]
    scores: Tensor = share * models["private"](x) + (1 - share) * models["shared"](x)
    return scores


def _nearest(models: Models, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """FedProto and FedTGP: the nearest of known class vectors."""
    return nearest_row(models["model"].features(x), ClassTable(tensors["rows"], tensors["known"]))


def _fused(models: Models, x: Tensor) -> Tensor:
    features = [models["small"].features(x), models["large"].features(x)]
    fused: Tensor = models["projector"](torch.cat(features, dim=1))
    return fused


def _fused_large(models: Models, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """FedMRL: the large header on both extractors' features, projected."""
    scores: Tensor = models["large"].head(_fused(models, x))
    return scores


def _fused_small(models: Models, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """FedMRL: the small header on the first of the fused features."""
    small = models["small"]
    scores: Tensor = small.head(_fused(models, x)[:, : small.feature_dim])
    return scores


def _masked(models: Models, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """HeteroFL's local score: classes that the client does not have score 0."""
    scores: Tensor = models["model"](x).masked_fill(~tensors["present"], 0.0)
    return scores


KINDS: dict[str, Callable[[Models, Mapping[str, Tensor], Tensor], Tensor]] = {
    "mixed": _mixed,
    "small extractor": _small_extractor,
    "ensemble": _ensemble,
    "nearest": _nearest,
    "fused-large": _fused_large,
    "fused-small": _fused_small,
    "masked": _masked,
}


class Composite(nn.Module):
    """Models and tensors put together in one of a few known ways. The parts are held, not copied."""

    def __init__(self, kind: str, models: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.kind = kind
        self.models = nn.ModuleDict(models)
        self.names = tuple(tensors)
        for name, tensor in tensors.items():
            self.register_buffer(f"own_{name}", tensor)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        tensors = {name: self.get_buffer(f"own_{name}") for name in self.names}
        return KINDS[self.kind](dict(self.models.items()), tensors, x)
