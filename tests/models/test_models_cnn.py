"""CNN-1 … CNN-5 against the parameter counts that follow from the papers' table."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from potluck.core.errors import PotluckError
from potluck.models import build_model, count_parameters

COUNTS = {
    "cnn-1": (2621558, 2666648),
    "cnn-2": (1815142, 1860232),
    "cnn-3": (1320558, 1365648),
    "cnn-4": (1060358, 1105448),
    "cnn-5": (670058, 715148),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_for_ten_and_hundred_classes(name: str) -> None:
    counts = tuple(count_parameters(build_model(name, (3, 32, 32), classes)) for classes in (10, 100))
    assert counts == COUNTS[name]


def test_the_shared_extractor_of_pfedafm_is_cnn5_without_its_head() -> None:
    model = build_model("cnn-5", (3, 32, 32), 10)
    assert count_parameters(model) - count_parameters(model.head) == 665048


def test_mnist_works_and_the_representation_has_500_features() -> None:
    model = build_model("cnn-2", (1, 28, 28), 10)
    x = torch.rand(2, 1, 28, 28)
    assert model.features(x).shape == (2, 500)
    assert torch.equal(model(x), model.head(model.features(x)))
    assert model.fc1.in_features == 16 * 4 * 4  # 28 -> 24 -> 12 -> 8 -> 4


def test_an_image_that_is_too_small_is_named() -> None:
    build_model("cnn-1", (1, 16, 16), 10)
    with pytest.raises(PotluckError, match=r"'cnn-1' needs inputs of at least 16×16.*\(1, 8, 8\).*small5"):
        build_model("cnn-1", (1, 8, 8), 10)


LAYOUTS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1)])
def test_the_rectifier_may_follow_the_pooling(layout: str, window: tuple[int, int, int]) -> None:
    """Not one bit changes, forward or backward, where values tie, where all are negative, and at zeros of both signs."""
    rng = torch.Generator().manual_seed(0)
    ties = torch.randint(-2, 3, (6, 16, 8, 8), generator=rng).float()
    ties[0, 0], ties[0, 1], ties[0, 2], ties[0, 3, 0, 0] = -1.0, 0.0, -0.0, -0.0
    slopes = torch.randn(6, 16, 4, 4, generator=rng)
    for values in (ties, torch.randn(6, 16, 8, 8, generator=rng)):
        calls = []
        for order in ("as printed", "as computed"):
            x = values.contiguous(memory_format=LAYOUTS[layout]).detach().requires_grad_()
            y = F.relu(x) if order == "as printed" else x
            y = F.max_pool2d(y, *window)
            y = F.relu(y) if order == "as computed" else y
            (gradient,) = torch.autograd.grad(y, x, slopes)
            calls.append((y, gradient))
        (printed, its), (computed, own) = calls
        assert torch.equal(bits(printed), bits(computed))
        assert torch.equal(bits(its), bits(own))
        assert values is not ties or not own[0, :3].any()
