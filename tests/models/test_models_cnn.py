"""CNN-1 … CNN-5 against the parameter counts that follow from the papers' table."""

import pytest
import torch

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
