"""Operations of layers that torch's counter omits or miscounts, by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck.models import build_model
from potluck.models.flops import FlopCounter


def forward_and_backward(module: nn.Module, x: Tensor) -> tuple[int, int]:
    """Operations of a pass forward, and of the gradients of weights and input."""
    x = x.requires_grad_()
    with FlopCounter() as forward:
        out = module(x)
    with FlopCounter() as backward:
        (out[0] if isinstance(out, tuple) else out).sum().backward()
    return forward.total, backward.total


def test_grouped_convolution_costs_its_own_filters_alone_in_both_directions() -> None:
    """Six channels, each with one 3×3 filter, on 5×5 positions of two images."""
    conv = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)
    once = 2 * 2 * 25 * 6 * 9
    assert forward_and_backward(conv, torch.randn(2, 6, 5, 5)) == (once, 2 * once)


def test_gradient_of_an_input_is_counted_only_where_it_is_needed() -> None:
    conv = nn.Conv2d(3, 4, 3, bias=False)
    once = 2 * 9 * 4 * 3 * 9
    with FlopCounter() as counter:
        conv(torch.randn(1, 3, 5, 5)).sum().backward()
    assert counter.total == 2 * once


def test_recurrent_layer_costs_its_weights_in_every_step() -> None:
    """Four gates of 5 units, each with 3 inputs and 5 units of the step before; 7 steps of 2 rows."""
    lstm = nn.LSTM(3, 5, batch_first=True)
    once = 2 * 7 * 2 * 4 * 5 * (3 + 5)
    assert forward_and_backward(lstm, torch.randn(2, 7, 3)) == (once, 2 * once)


def test_transformer_layer_costs_the_same_with_and_without_gradients() -> None:
    """The fused path without gradients and the plain one with them: four products of weights, two of attention."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    weights = 8 * 24 + 8 * 8 + 8 * 16 + 16 * 8
    once = 3 * (2 * 5 * weights + 2 * 2 * 5 * 5 * 8)
    counts = []
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients), FlopCounter() as counter:
            layer(x)
        counts.append(counter.total)
    assert counts == [once, once]


def test_products_by_onednn_are_counted() -> None:
    """A batch large enough for `Dense` to hand its first layer to oneDNN."""
    model = build_model("mlp-3", (64,), 10)
    rows, layers = 2048, (64 * 256, 256 * 128, 128 * 64, 64 * 10)
    with FlopCounter() as counter:
        cross_entropy(model(torch.randn(rows, 64)), torch.zeros(rows, dtype=torch.int64)).backward()
    assert counter.total == rows * 2 * (3 * sum(layers) - layers[0])
