"""Low-rank adapters (LoRA, Hu et al., ICLR 2022): a frozen network whose layers learn a change W + α/r · B A.

`attach_adapters` puts adapters of one rank on linear layers, convolutions and attention projections of a network;
`merge_adapters` returns the plain network with the changed weights. Names of tensors follow one rule, on which the
methods rely: layer `NAME` becomes `NAME.base.…` (frozen), `NAME.lora_a.weight`, `NAME.lora_b.weight` and
`NAME.lora_scaling`.

The module is the library's own rather than `peft`, because clients must be copied, stacked by `torch.func`, sent to
worker processes and compared by value, attention of `nn.TransformerEncoderLayer` must be adapted (whose inference path
reads weights without calling layers), and adapters must work without `transformers`.
"""

from __future__ import annotations

import copy
import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.core.random import seeded
from potluck.core.trained import TrainRule, train_only
from potluck.core.training import Training

Network = TypeVar("Network", bound=ClientModel)
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Factor = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


class AdaptedLayer(nn.Module):
    """A frozen layer and its low-rank change. Attributes that it lacks are those of the layer."""

    weight_name = "weight"
    """The tensor of the layer that changes."""
    base: nn.Module
    lora_a: Factor
    lora_b: Factor
    lora_scaling: Tensor

    def __init__(self, base: nn.Module, lora_a: Factor, lora_b: Factor, alpha: float | None) -> None:
        super().__init__()
        weight = next(base.parameters())
        self.base = base
        self.lora_a = lora_a.to(device=weight.device, dtype=weight.dtype)
        self.lora_b = lora_b.to(device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.lora_b.weight)
        scaling = 1.0 if alpha is None else alpha / self.lora_a.weight.shape[0]
        # A buffer, so that the server reads it from the architecture's tensors; it is never sent.
        self.register_buffer("lora_scaling", torch.tensor(scaling, dtype=weight.dtype, device=weight.device))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the frozen layer, such as `in_features`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base":
                raise
            return getattr(self.base, name)

    def changed_weight(self) -> Tensor:
        """Return W + α/r · B A, in the shape of W."""
        weight: Tensor = getattr(self.base, self.weight_name)
        product = self.lora_b.weight.flatten(1) @ self.lora_a.weight.flatten(1)
        changed: Tensor = weight + self.lora_scaling * product.view_as(weight)
        return changed

    def merged(self) -> nn.Module:
        """Return a copy of the layer with the changed weight."""
        layer = copy.deepcopy(self.base)
        with torch.no_grad():
            getattr(layer, self.weight_name).copy_(self.changed_weight())
        return layer


class AdaptedLinear(AdaptedLayer):
    """A linear layer, or a convolution, plus scaled B(A(x)): the product B A is never formed in training."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output plus that of its adapter."""
        change: Tensor = self.lora_b(self.lora_a(x))
        output: Tensor = self.base(x)
        return output + self.lora_scaling * change

    @property
    def weight(self) -> Tensor:
        """The changed weight, for code that reads weights instead of calling the layer."""
        return self.changed_weight()


class AdaptedKernel(AdaptedLayer):
    """A convolution with a `forward` of its own, such as one that pads its input: called with the changed kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Call the layer with the changed weight."""
        output: Tensor = functional_call(self.base, {self.weight_name: self.weight}, (x,))
        return output

    @property
    def weight(self) -> Tensor:
        """The changed weight."""
        return self.changed_weight()


class AdaptedAttention(AdaptedLayer):
    """Attention whose joint input projection changes; its output projection is an adapted layer of its own."""

    weight_name = "in_proj_weight"

    def forward(self, *inputs: Tensor, **options: Any) -> Any:
        """Call the attention with the changed projection."""
        return functional_call(self.base, {self.weight_name: self.in_proj_weight}, inputs, options)

    @property
    def in_proj_weight(self) -> Tensor:
        """The changed projection of queries, keys and values."""
        return self.changed_weight()


# -- attaching and merging ----------------------------------------------------------------------------------


def attach_adapters(model: Network, rank: int, alpha: float | None = None) -> Network:
    """Put adapters of one rank on all layers that take them, in place; only adapters and head are trained then.

    A layer's rank is at most the smaller side of its weight. `alpha` scales the change by alpha / rank; without it the
    scaling is 1. A and B start as in the paper: A at random, B at zero, so that outputs do not change at first.
    """
    if rank < 1:
        raise PotluckError(f"The rank of adapters is {rank}; it must be at least 1.")
    if has_adapters(model):
        raise PotluckError("The model has adapters already; merge them first (merge_adapters).")
    model.requires_grad_(False)
    adapted: dict[int, nn.Module] = {}
    top = [getattr(model, name) for name in model.top_modules]
    _replace_layers(model, rank, alpha, adapted, skip=top)
    if not adapted:
        raise PotluckError(
            f"The model ({type(model).__name__}) has no layer that takes adapters: no linear layer, ungrouped "
            "convolution or attention below its head; choose another model, or train it as a whole."
        )
    for module in top:
        module.requires_grad_(True)
    model.frozen = _frozen_modules(model)
    return model.train(model.training)


def apply_rule(model: ClientModel, rule: TrainRule, training: Training, *stream: object) -> None:
    """Freeze everything that a rule of `training.train` does not train; `stream` names the draws of new adapters."""
    if rule.form != "lora":
        train_only(model, rule)
        return
    with seeded(*stream):
        attach_adapters(model, rule.number, training.lora_alpha)


def has_adapters(model: nn.Module) -> bool:
    """Return whether any layer has an adapter."""
    return any(isinstance(layer, AdaptedLayer) for layer in model.modules())


def merge_adapters(model: Network) -> Network:
    """Return a copy without adapters whose weights are the changed ones; all of it can be trained again."""
    plain = copy.deepcopy(model)
    _merge_layers(plain, {})
    plain.frozen = ()
    return plain.train(model.training).requires_grad_(True)


def _frozen_modules(model: nn.Module) -> tuple[str, ...]:
    """Return the outermost modules that have tensors and none that is trained."""
    roots: list[str] = []
    for name, module in model.named_modules():
        tensors = [*module.parameters(), *module.buffers()]
        inside = any(name.startswith(f"{root}.") for root in roots)
        if name and tensors and not inside and not any(tensor.requires_grad for tensor in tensors):
            roots.append(name)
    return tuple(roots)


def _replace_layers(
    module: nn.Module, rank: int, alpha: float | None, adapted: dict[int, nn.Module], skip: list[nn.Module]
) -> None:
    """Replace layers below `module`; a layer that occurs at several places stays one layer."""
    for name, layer in list(module.named_children()):
        if any(layer is top for top in skip):
            continue
        if id(layer) in adapted:
            setattr(module, name, adapted[id(layer)])
            continue
        _replace_layers(layer, rank, alpha, adapted, skip)
        replacement = _adapt(layer, rank, alpha)
        if replacement is not None:
            adapted[id(layer)] = replacement
            setattr(module, name, replacement)


def _adapt(layer: nn.Module, rank: int, alpha: float | None) -> AdaptedLayer | None:
    """Return the layer with an adapter, or None for a layer that takes none."""
    if isinstance(layer, nn.Linear):
        rank = min(rank, layer.in_features, layer.out_features)
        lora_a = nn.Linear(layer.in_features, rank, bias=False)
        return AdaptedLinear(layer, lora_a, nn.Linear(rank, layer.out_features, bias=False), alpha)
    if isinstance(layer, Convolution) and layer.groups == 1:
        return _adapt_convolution(layer, rank, alpha)
    if isinstance(layer, nn.MultiheadAttention) and layer.in_proj_weight is not None:
        outputs, inputs = layer.in_proj_weight.shape
        rank = min(rank, inputs)
        lora_a = nn.Linear(inputs, rank, bias=False)
        return AdaptedAttention(layer, lora_a, nn.Linear(rank, outputs, bias=False), alpha)
    return None


def _adapt_convolution(layer: Convolution, rank: int, alpha: float | None) -> AdaptedLayer:
    """Return a convolution with an adapter: its kernel with `rank` filters, then a 1×1 mixture of them."""
    kind: Any = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(layer, kind))
    rank = min(rank, layer.out_channels, layer.in_channels * math.prod(layer.kernel_size))
    lora_a = kind(
        layer.in_channels,
        rank,
        layer.kernel_size,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        bias=False,
        padding_mode=layer.padding_mode,
    )
    adapted = AdaptedLinear if type(layer).forward is kind.forward else AdaptedKernel
    return adapted(layer, lora_a, kind(rank, layer.out_channels, 1, bias=False), alpha)


def _merge_layers(module: nn.Module, merged: dict[int, nn.Module]) -> None:
    for name, layer in list(module.named_children()):
        _merge_layers(layer, merged)
        if isinstance(layer, AdaptedLayer):
            if id(layer) not in merged:
                merged[id(layer)] = layer.merged()
            setattr(module, name, merged[id(layer)])
