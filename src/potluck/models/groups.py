"""Named groups of architectures, and which client gets which."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from potluck.core.errors import PotluckError, unknown
from potluck.models.registry import RATES, build_model, model_names, parse_name

_DEEP = ("resnet50+512", "resnet101+512", "resnet152+512")
_HTFE8 = ("fedavg-cnn-4", "googlenet+512", "mobilenet-v2+512", "resnet18", "resnet34", *_DEEP)

groups: dict[str, tuple[str, ...]] = {
    "cnn5": ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"),
    "small5": ("small-mlp", "small-cnn", "small-wide", "small-res", "small-sep"),
    "fedhe10": tuple(f"fedhe-{number}" for number in range(10)),
    "resnet5": ("resnet10", "resnet14", "resnet18", "resnet22", "resnet26"),
    "nested5": tuple(f"mini-resnet-{number}" for number in range(1, 6)),
    "width5": tuple(f"slim-cnn@{rate}" for rate in RATES),
    "mlp3": ("mlp-1", "mlp-2", "mlp-3"),
    "har3": ("har-cnn", "har-wide", "har-lstm"),
    "text3": ("text-bag", "text-lstm", "text-transformer"),
    # FedL2G's groups: everyone's features are pooled to 512, where they are not 512 already.
    "htfe2": ("fedavg-cnn-4", "resnet18"),
    "htfe3": ("resnet10", "resnet18", "resnet34"),
    "htfe4": ("fedavg-cnn-4", "googlenet+512", "mobilenet-v2+512", "resnet18"),
    "htfe8": _HTFE8,
    "htfe9": ("resnet4+512", "resnet6+512", "resnet8+512", "resnet10", "resnet18", "resnet34", *_DEEP),
    "htm10": (*_HTFE8, "vit-b-16+512", "vit-b-32+512"),
}


def resolve_models(models: str | Sequence[str]) -> list[str]:
    """The architecture names meant by a group, a comma list, or a list of either."""
    parts = models.split(",") if isinstance(models, str) else models
    names: list[str] = []
    for part in (part.strip() for part in parts):
        if part in groups:
            names += groups[part]
        elif parse_name(part):
            names.append(part)
        else:
            raise unknown("model", part, [*model_names(), *groups])
    if not names:
        raise PotluckError("models is an empty list; name at least one model or group, such as 'small5'.")
    return names


def assign(models: Sequence[str], clients: int) -> list[str]:
    """The papers' rule: client i of `clients` gets model i mod X of the X given."""
    return [models[client % len(models)] for client in range(clients)]


def count_parameters(model: nn.Module) -> int:
    """How many numbers a network learns."""
    return sum(parameter.numel() for parameter in model.parameters())


def smallest(
    names: Sequence[str], input_shape: tuple[int, ...], num_classes: int, *, vocabulary: int | None = None
) -> str:
    """The architecture with the fewest parameters; of equals, the first named. Nothing is drawn at random."""

    def size(name: str) -> int:
        with torch.device("meta"):
            return count_parameters(build_model(name, input_shape, num_classes, vocabulary=vocabulary))

    return min(names, key=size)
