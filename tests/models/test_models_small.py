"""The five small networks learn the embedded digits from scratch."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from potluck.core.random import generator, seeded
from potluck.models import build_model, count_parameters, groups


@pytest.mark.parametrize("name", groups["small5"])
def test_learns_digits_from_700_samples_in_four_epochs(name: str) -> None:
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    with seeded("small", name):
        model = build_model(name, (1, 8, 8), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = generator("order", name)
    for _ in range(4):
        for batch in torch.randperm(700, generator=order).split(10):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (model.eval()(x[700:]).argmax(1) == y[700:]).float().mean()
    assert accuracy > 0.8


@pytest.mark.parametrize("name", groups["small5"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (3, 16, 24)])
def test_all_sizes_give_64_features(name: str, shape: tuple[int, int, int]) -> None:
    model = build_model(name, shape, 7).double()
    x = torch.rand(2, *shape, dtype=torch.float64)
    assert model.features(x).shape == (2, 64)
    assert model(x).shape == (2, 7)
    assert model(x).dtype == torch.float64


def test_the_five_differ_in_size_on_digits() -> None:
    # small-mlp: 64·128+128 + 128·64+64 + 64·10+10
    sizes = {name: count_parameters(build_model(name, (1, 8, 8), 10)) for name in groups["small5"]}
    assert sizes["small-mlp"] == 8320 + 8256 + 650
    assert sizes["small-cnn"] == 160 + 4640 + 8256 + 650
    assert sizes["small-wide"] == 1040 + 41024 + 650
    assert len(set(sizes.values())) == 5
