"""Adapters: what they compute, what learns, and the plain network that they merge into."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.core.random import seeded
from potluck.models import build_model, split
from potluck.models.lora import AdaptedLayer, attach_adapters, has_adapters, merge_adapters

SHAPES = {
    "small-mlp": (1, 8, 8),
    "small-cnn": (1, 8, 8),
    "small-res": (1, 8, 8),
    "small-sep": (1, 8, 8),
    "cnn-5": (3, 32, 32),
    "vit-tiny": (1, 8, 8),
    "text-bag": (12,),
    "text-transformer": (12,),
}


def network(name: str) -> ClientModel:
    with seeded(3, name):
        return build_model(name, SHAPES[name], 3, vocabulary=20 if name.startswith("text") else None).double()


def inputs(name: str) -> Tensor:
    rng = torch.Generator().manual_seed(5)
    shape = (4, *SHAPES[name])
    if name.startswith("text"):
        return torch.randint(1, 20, shape, generator=rng)
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def adapted(name: str, rank: int = 2, *, trained: bool = True, alpha: float | None = None) -> ClientModel:
    """A network with adapters, whose B is no longer zero where `trained`."""
    with seeded(4, name):
        model = attach_adapters(network(name), rank, alpha)
        for layer in model.modules():
            if trained and isinstance(layer, AdaptedLayer):
                nn.init.normal_(layer.lora_b.weight, std=0.3)
    return model


@pytest.mark.parametrize("name", SHAPES)
def test_new_adapters_do_not_change_outputs(name: str):
    x, model = inputs(name), network(name).eval()
    assert torch.allclose(adapted(name, trained=False).eval()(x), model(x), atol=1e-12)


@pytest.mark.parametrize("name", SHAPES)
def test_the_merged_network_gives_the_same_outputs_and_has_the_plain_tensors(name: str):
    x, model = inputs(name), adapted(name).eval()
    with torch.no_grad():  # the inference path of transformers reads weights without calling layers
        merged, expected = merge_adapters(model), model(x)
    assert torch.allclose(merged(x), expected, atol=1e-10)
    assert torch.allclose(model(x), expected, atol=1e-10)
    assert not torch.allclose(expected, network(name).eval()(x), atol=1e-3)
    assert not has_adapters(merged)
    assert has_adapters(model)
    plain = {key: tensor.shape for key, tensor in network(name).state_dict().items()}
    assert {key: tensor.shape for key, tensor in merged.state_dict().items()} == plain
    assert all(parameter.requires_grad for parameter in merged.parameters())


@pytest.mark.parametrize("name", SHAPES)
def test_only_adapters_and_the_head_get_gradients(name: str):
    model = adapted(name)
    model(inputs(name)).square().sum().backward()
    for key, parameter in model.named_parameters():
        learns = "lora_" in key or key.startswith("head.")
        assert (parameter.grad is not None) == learns, key
        assert not learns or bool(parameter.grad.any()), key


class SamePadding(nn.Conv2d):
    """A convolution that pads in `forward`, as EfficientNet-Lite's."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(x, (0, 1, 0, 1)))


def test_a_convolution_with_a_forward_of_its_own_is_called_with_the_changed_kernel():
    with seeded(7, "padded"):
        plain = split(
            nn.Sequential(
                SamePadding(1, 2, 3, stride=2, dtype=torch.float64),
                nn.Flatten(),
                nn.Linear(18, 3, dtype=torch.float64),
            )
        )
        model = attach_adapters(copy.deepcopy(plain), 2)
    x = torch.arange(36, dtype=torch.float64).reshape(1, 1, 6, 6)
    assert torch.equal(model(x), plain(x))  # B is zero
    layer = next(layer for layer in model.modules() if isinstance(layer, AdaptedLayer))
    with torch.no_grad():
        layer.lora_b.weight.fill_(0.5)
        change = 0.5 * layer.lora_a.weight.flatten(1).sum(
            0
        )  # both outputs take half of the sum of A's two rows
        expected = copy.deepcopy(plain)
        next(iter(expected.parameters())).add_(change.view(1, 1, 3, 3))
    assert torch.allclose(model(x), expected(x), atol=1e-12)
    assert torch.allclose(merge_adapters(model)(x), expected(x), atol=1e-12)
    model(x).sum().backward()
    assert bool(layer.lora_a.weight.grad.any())
    assert layer.base.weight.grad is None


def test_a_linear_layer_computes_its_scaled_low_rank_change():
    model = adapted("small-mlp", rank=2, alpha=6.0)
    layer, x = model.fc1, torch.ones(1, 64, dtype=torch.float64)
    change = 3.0 * (x @ layer.lora_a.weight.T @ layer.lora_b.weight.T)  # α/r = 6/2
    assert torch.allclose(layer(x), layer.base(x) + change)
    assert torch.allclose(layer.weight - layer.base.weight, 3.0 * layer.lora_b.weight @ layer.lora_a.weight)


def test_attention_projections_have_adapters_of_their_own():
    names = {key for key, _ in adapted("text-transformer").named_parameters() if "lora_" in key}
    assert {
        "layers.0.self_attn.lora_a.weight",
        "layers.0.self_attn.base.out_proj.lora_b.weight",
        "layers.1.linear1.lora_a.weight",
    } <= names


def test_a_rank_is_at_most_the_smaller_side_of_the_weight():
    model = adapted("small-cnn", rank=50)
    assert model.conv1.lora_a.weight.shape == (9, 1, 3, 3)  # 16 filters of 9 numbers
    assert model.conv2.lora_a.weight.shape == (32, 16, 3, 3)
    assert model.fc.lora_b.weight.shape == (64, 50)


def test_grouped_convolutions_and_the_head_stay_plain():
    layers = {key for key, layer in adapted("small-sep").named_modules() if isinstance(layer, AdaptedLayer)}
    assert layers == {"stem.0", "sep1.1", "sep2.1"}


def test_adapters_can_be_stacked_over_clients():
    models = [adapted("text-transformer"), adapted("text-transformer", trained=False)]
    stacked = {
        key: torch.stack([dict(model.named_parameters())[key] for model in models]).detach()
        for key, _ in models[0].named_parameters()
    }
    constants = dict(models[0].named_buffers())
    x = inputs("text-transformer")

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(copy.deepcopy(models[0]), parameters | constants, (x,)).square().sum()

    slopes = vmap(grad(loss))(stacked)["layers.0.self_attn.lora_a.weight"]
    models[0](x).square().sum().backward()
    assert torch.allclose(slopes[0], models[0].layers[0].self_attn.lora_a.weight.grad, atol=1e-9)
    assert not slopes[1].any()  # B = 0 gives A no gradient


def test_errors_are_sentences():
    with pytest.raises(PotluckError, match="rank of adapters is 0; it must be at least 1"):
        attach_adapters(network("small-mlp"), 0)
    with pytest.raises(PotluckError, match="has adapters already"):
        attach_adapters(adapted("small-mlp"), 2)
    lstm = build_model("text-lstm", (12,), 3, vocabulary=20)
    with pytest.raises(PotluckError, match="TextLSTM.* has no layer that takes adapters"):
        attach_adapters(lstm, 2)
