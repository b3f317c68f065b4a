"""`Dense`, computed by oneDNN, equals `nn.Linear` up to rounding."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from potluck.core.model import any_channels_last
from potluck.models import build_model, dense
from potluck.models.dense import Dense
from potluck.models.flops import FlopCounter

INPUTS, OUTPUTS, ROWS = 768, 512, 6  # large enough to be worth it


def pair(bias: bool = True) -> tuple[Dense, nn.Linear, Tensor]:
    torch.manual_seed(0)
    dense_layer, plain = Dense(INPUTS, OUTPUTS, bias), nn.Linear(INPUTS, OUTPUTS, bias)
    plain.load_state_dict(dense_layer.state_dict())
    assert ROWS * dense_layer.weight.numel() >= dense.MIN_MULTIPLICATIONS
    return dense_layer, plain, torch.randn(ROWS, INPUTS)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the products that oneDNN was asked for."""
    shapes: list[tuple[int, ...]] = []
    multiply = dense._multiply

    def noting(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        shapes.append((*x.shape, len(weight)))
        return multiply(x, weight, bias)

    monkeypatch.setattr(dense, "_multiply", noting)
    return shapes


@pytest.mark.parametrize("bias", [True, False])
def test_output_and_gradients_are_those_of_a_linear_layer(bias: bool, products: list[tuple[int, ...]]):
    dense_layer, plain, x = pair(bias)
    results = []
    for layer in (dense_layer, plain):
        inputs = x.clone().requires_grad_()
        out = layer(inputs)
        (out**2).sum().backward()
        results.append([out, inputs.grad, *(parameter.grad for parameter in layer.parameters())])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    if dense._AVAILABLE:  # forward, by the input, by the weight
        assert products == [
            (ROWS, INPUTS, OUTPUTS),
            (ROWS, OUTPUTS, INPUTS),
            (OUTPUTS, ROWS, INPUTS),
        ]


def test_rows_may_have_further_dimensions(products: list[tuple[int, ...]]):
    dense_layer, plain, x = pair()
    out = dense_layer(x.view(3, 2, INPUTS))
    assert out.shape == (3, 2, OUTPUTS)
    torch.testing.assert_close(out, plain(x.view(3, 2, INPUTS)), rtol=1e-4, atol=1e-4)
    assert products in ([], [(ROWS, INPUTS, OUTPUTS)])


@pytest.mark.skipif(not dense._AVAILABLE, reason="torch has no oneDNN here")
def test_rows_as_they_are_take_one_step_back():
    dense_layer, _, x = pair()
    node = dense_layer(x).grad_fn
    assert node is not None
    assert type(node).__name__ == "_ProductBackward"
    assert all(type(before).__name__ == "AccumulateGrad" for before, _ in node.next_functions[1:])


def test_a_transformer_keeps_its_weights_and_draws_no_others():
    def layer() -> nn.TransformerEncoderLayer:
        torch.manual_seed(1)
        return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    plain = layer()
    after = torch.rand(1)
    dense_network = dense.with_dense(layer())
    assert torch.rand(1) == after
    assert isinstance(dense_network.linear1, Dense)
    x = torch.randn(2, 3, 16)
    assert torch.equal(dense_network(x), plain(x))


def test_unneeded_gradients_are_not_computed(products: list[tuple[int, ...]]):
    dense_layer, _, x = pair()
    dense_layer(x).sum().backward()
    assert len(products) in (0, 2)  # forward and by the weight; none where torch has no oneDNN


def test_the_same_product_twice_has_the_same_bits():
    dense_layer, _, x = pair()
    again = copy.deepcopy(dense_layer)
    for layer in (dense_layer, again):
        layer(x).square().sum().backward()
    assert torch.equal(dense_layer(x), again(x))
    assert dense_layer.weight.grad is not None
    assert again.weight.grad is not None
    assert torch.equal(dense_layer.weight.grad, again.weight.grad)


def test_second_derivatives_are_those_of_a_linear_layer():
    dense_layer, plain, x = pair()
    gradients = []
    for layer in (dense_layer, plain):
        inputs = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(layer(inputs).pow(3).mean(), layer.weight, create_graph=True)
        gradients.append(torch.autograd.grad(first.square().sum(), [inputs, layer.weight]))
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-7)


def test_forward_mode_is_that_of_a_linear_layer():
    dense_layer, plain, x = pair()
    along = torch.randn_like(x), torch.randn_like(dense_layer.weight), torch.randn_like(dense_layer.bias)
    outputs = []
    for layer in (dense_layer, plain):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual
            tensors = {
                "weight": dual(layer.weight.detach(), along[1]),
                "bias": dual(layer.bias.detach(), along[2]),
            }
            out = functional_call(layer, tensors, (dual(x, along[0]),))
            outputs.append(torch.autograd.forward_ad.unpack_dual(out).tangent)
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-4)


def test_transforms_autocast_and_small_layers_fall_back_to_torch(
    products: list[tuple[int, ...]],
):
    dense_layer, plain, x = pair()
    tensors = {
        name: torch.stack([tensor, 2 * tensor]).detach() for name, tensor in dense_layer.state_dict().items()
    }

    def loss(layer: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, weights, (x,)).square().sum()

    both = [
        vmap(grad(lambda weights, layer=layer: loss(layer, weights, x)))(tensors)
        for layer in (dense_layer, plain)
    ]
    assert all(torch.equal(both[0][name], both[1][name]) for name in tensors)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(dense_layer(x), plain(x))
    assert torch.equal(
        copy.deepcopy(dense_layer).double()(x.double()), copy.deepcopy(plain).double()(x.double())
    )
    small = Dense(3, 2)
    small(torch.randn(4, 3)).sum().backward()
    dense_layer(x[:0])
    assert products == []


def test_a_network_with_such_layers_can_be_exported_and_its_operations_counted():
    model = build_model("cnn-5", (3, 32, 32), 10).eval()
    x = torch.randn(3, 3, 32, 32)
    program = torch.export.export(model, (x,))
    torch.export.save(program, io.BytesIO())
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-4)
    convolutions = 28 * 28 * 16 * 75 + 10 * 10 * 32 * 16 * 25
    dense_layers = 800 * 500 + 500 * 500 + 500 * 10
    with FlopCounter() as counter:
        model(x).sum().backward()
    first = 28 * 28 * 16 * 75  # its input needs no gradient
    assert counter.total == 3 * 2 * (3 * (convolutions + dense_layers) - first)


@pytest.mark.parametrize(
    ("name", "shape", "last"),
    [
        ("cnn-1", (3, 32, 32), True),
        ("mobilenet-v2", (3, 32, 32), True),
        ("resnet8", (3, 32, 32), True),
        ("resnet18", (3, 32, 32), False),
        ("resnet18-cifar", (3, 32, 32), True),
        ("resnet50", (3, 32, 32), True),
        ("resnet50-cifar", (3, 32, 32), False),
        ("slim-cnn@0.25", (3, 32, 32), True),
        ("mobilenet-v2+512", (3, 32, 32), True),
        ("small-mlp", (1, 8, 8), False),
    ],
)
def test_the_zoo_knows_how_a_network_lies_in_memory(name: str, shape: tuple[int, ...], last: bool):
    assert any_channels_last(build_model(name, shape, 10).parameters()) is last
