"""FedHe's ten networks: parameter counts, and the Keras conventions that torch does differently."""

import math

import pytest
import torch
from torch import nn

from potluck.core.random import seeded
from potluck.models import build_model, count_parameters
from potluck.models.fedhe import SameAvgPool

# trainable and total (with batch-norm statistics) on MNIST, then on CIFAR-10
COUNTS = {
    0: (729856, 730624, 875520, 876288),
    1: (1094016, 1095040, 1311360, 1312384),
    2: (1458176, 1459456, 1747200, 1748480),
    3: (1026304, 1027328, 1174272, 1175296),
    4: (2049536, 2051072, 2340864, 2342400),
    5: (352640, 353536, 353792, 354688),
    6: (272960, 273728, 274112, 274880),
    7: (566592, 567744, 568896, 570048),
    8: (226816, 227584, 229120, 229888),
    9: (306496, 307392, 308800, 309696),
}


@pytest.mark.parametrize("number", COUNTS)
def test_parameter_counts(number: int) -> None:
    counts: list[int] = []
    for shape in ((1, 28, 28), (3, 32, 32)):
        with torch.device("meta"):
            model = build_model(f"fedhe-{number}", shape, 10)
        statistics = sum(buffer.numel() for name, buffer in model.named_buffers() if "running" in name)
        counts += [count_parameters(model), count_parameters(model) + statistics]
    assert tuple(counts) == COUNTS[number]


@pytest.mark.parametrize(
    ("number", "shape", "features"), [(0, (1, 28, 28), 256 * 13 * 13), (9, (3, 32, 32), 192 * 9)]
)
def test_the_features_are_the_flat_last_maps(number: int, shape: tuple[int, int, int], features: int) -> None:
    model = build_model(f"fedhe-{number}", shape, 10)
    assert model.feature_dim == features
    assert model.features(torch.rand(2, *shape)).shape == (2, features)
    assert model.head.bias is None


def test_pooling_leaves_the_padding_out_of_the_mean() -> None:
    x = torch.tensor([[1.0, 3.0], [5.0, 7.0]]).reshape(1, 1, 2, 2)
    # whole window: (1+3+5+7)/4; right edge: (3+7)/2; lower edge: (5+7)/2; corner: 7
    assert SameAvgPool()(x).flatten().tolist() == [4.0, 5.0, 6.0, 7.0]


def test_weights_are_a_cut_normal_of_variance_one_over_fan_in() -> None:
    with seeded("lecun"):
        conv = build_model("fedhe-2", (3, 32, 32), 10).blocks[1][0]
    fan_in = 128 * 3 * 3
    deviation = math.sqrt(1 / fan_in)
    assert conv.weight.std().item() == pytest.approx(deviation, rel=0.01)
    assert conv.weight.abs().max().item() <= 2 * deviation / 0.8796 + 1e-6
    assert not conv.bias.any()


def test_batch_norm_has_keras_defaults() -> None:
    norms = [
        layer
        for layer in build_model("fedhe-5", (1, 28, 28), 10).modules()
        if isinstance(layer, nn.BatchNorm2d)
    ]
    assert [(norm.momentum, norm.eps) for norm in norms] == [(0.01, 1e-3)] * 3
