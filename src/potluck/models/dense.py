"""A linear layer that oneDNN computes: on processors for which MKL has no kernels of its own, up to twice as fast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from potluck.core.torch_fast import are_transforms_active, onednn_linear

MIN_MULTIPLICATIONS = 1 << 21
"""Multiplications from which on oneDNN's shorter computation outweighs its longer call."""

_OPERATOR = onednn_linear()
_AVAILABLE = _OPERATOR is not None
_LINEAR: Any = _OPERATOR.default if _AVAILABLE else None


class Dense(nn.Linear):
    """`nn.Linear` in all but rounding and speed.

    Torch hands linear layers to MKL, whose kernels for other makers' processors use half of their vector width.
    oneDNN, which torch uses for convolutions, does not look at the maker. Only plain float32 tensors on the CPU
    go there; under transforms, autocast and tracing this layer is `nn.Linear` itself.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        if x.numel() * self.out_features < MIN_MULTIPLICATIONS or not _is_plain(x):
            return F.linear(x, self.weight, self.bias)
        if (
            x.dim() == 2
        ):  # the usual case, in which reshaping would only be another two steps of the backward pass
            return _product(x, self.weight, self.bias)
        rows = _product(x.reshape(-1, self.in_features), self.weight, self.bias)
        return rows.view(*x.shape[:-1], self.out_features)


def with_dense(layer: nn.TransformerEncoderLayer) -> nn.TransformerEncoderLayer:
    """Return a transformer's layer whose two linear layers are dense ones, with the weights that they had."""
    layer.linear1, layer.linear2 = _dense(layer.linear1), _dense(layer.linear2)
    return layer


def _dense(linear: nn.Linear) -> Dense:
    dense = Dense(linear.in_features, linear.out_features, device="meta")  # where nothing is drawn at random
    dense.weight, dense.bias = linear.weight, linear.bias
    return dense


def _is_plain(x: Tensor) -> bool:
    return (
        type(x) is Tensor
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and _AVAILABLE
        and not are_transforms_active()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _Product(torch.autograd.Function):
    """x Wᵀ + b with its derivatives, each one product of oneDNN's; derivatives of derivatives are torch's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (out,), (x, weight) = gradients, ctx.saved_tensors
        multiply = _differentiable if torch.is_grad_enabled() else _multiply
        needed = ctx.needs_input_grad
        return (
            multiply(out, weight.t()) if needed[0] else None,
            multiply(out.t(), x.t()) if needed[1] else None,
            out.sum(0) if needed[2] else None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        x, weight = ctx.saved_tensors
        by_x, by_weight, by_bias = tangents
        out: Tensor = x.new_zeros(len(x), len(weight))
        if by_x is not None:
            out = out + F.linear(by_x, weight)
        if by_weight is not None:
            out = out + F.linear(x, by_weight)
        return out if by_bias is None else out + by_bias


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return what `_Product.apply` gives, which once more would look for transforms: there are none (`_is_plain`)."""
    product: Tensor = super(torch.autograd.Function, _Product).apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = _LINEAR(x, weight, bias, "none", [], "")
    return out


def _differentiable(x: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = x @ weight.t()
    return product
