"""Count floating-point operations of whatever runs inside a `FlopCounter`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import conv_flop_count, flop_registry

from potluck.core.torch_fast import DispatchMode

Formula = Callable[..., int]


class FlopCounter(DispatchMode):  # type: ignore[no-untyped-call]
    """Sum the operations of all matrix products and convolutions, a multiplication and its addition as two.

    Torch's `FlopCounterMode` overstates the backward pass of grouped convolutions, and leaves out recurrent layers,
    fused attention on the CPU and oneDNN's products.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from loading its compiler: nothing here is ever compiled."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation and add its cost."""
        kwargs = kwargs or {}
        packet = func._overloadpacket
        formula = FORMULAS.get(packet) or flop_registry.get(packet)
        if formula is None and func is not torch.ops.aten.is_contiguous.default:
            with self:  # an operation made of others: those are counted
                parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
        result = func(*args, **kwargs)
        if formula is not None:
            self.total += int(formula(*args, **kwargs, out_val=result))
        return result


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *settings: Any, **_: Any) -> int:
    """Cost of the gradients that are asked for: each is one convolution of the forward pass's size."""
    transposed, needed = settings[4], settings[7]
    forward = conv_flop_count(list(x.shape), list(weight.shape), list(gradient.shape), transposed=transposed)
    return int(forward * (bool(needed[0]) + bool(needed[1])))


def _recurrent(x: Tensor, *weights: Any, **_: Any) -> int:
    """Cost of a recurrent layer over `[steps, batch, inputs]`: input and hidden weights in every step."""
    steps, batch = x.shape[:2]
    return 2 * steps * batch * int(weights[0].numel() + weights[1].numel())


def _recurrent_backward(x: Tensor, *weights: Any, **_: Any) -> int:
    return 2 * _recurrent(x, *weights)


def _attention(query: Tensor, key: Tensor, *_: Any, **__: Any) -> int:
    """Cost of scores and of weighted values, over `[batch, heads, length, width]`."""
    return 4 * query.numel() * key.shape[-2]


def _attention_backward(gradient: Tensor, query: Tensor, key: Tensor, *_: Any, **__: Any) -> int:
    """Cost of the scores once more, and of the gradients of weights, values, queries and keys."""
    return 10 * query.numel() * key.shape[-2]


def _transformer_layer(x: Tensor, width: int, *tensors: Any, **_: Any) -> int:
    """Cost of torch's fused encoder layer over `[batch, length, width]`: its four products, and attention."""
    batch, length = x.shape[:2]
    weights = sum(int(tensor.numel()) for tensor in tensors if _is_matrix(tensor))
    return int(2 * batch * length * weights + 4 * batch * length * length * width)


def _is_matrix(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 2 and value.is_floating_point()


def _linear(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    return 2 * math.prod(x.shape) * weight.shape[0]


_aten, _mkldnn = torch.ops.aten, torch.ops.mkldnn
_OPERATIONS: tuple[tuple[Any, str, Formula], ...] = (
    (_aten, "convolution_backward", _convolution_backward),
    (_aten, "mkldnn_rnn_layer", _recurrent),
    (_aten, "mkldnn_rnn_layer_backward", _recurrent_backward),
    (_aten, "_scaled_dot_product_flash_attention_for_cpu", _attention),
    (_aten, "_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
    (_aten, "_transformer_encoder_layer_fwd", _transformer_layer),
    (_mkldnn, "_linear_pointwise", _linear),
)
FORMULAS: dict[Any, Formula] = {
    getattr(space, name): formula for space, name, formula in _OPERATIONS if hasattr(space, name)
}
"""Formulas that torch lacks or has wrong, by operation; those that this torch does not have are left out."""
