"""Invariants of every built-in network."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.models import build_model, model_names
from potluck.models.registry import ENTRIES

# the deepest are built of the same blocks as their shallower kin, and cost seconds each
DEEP = ("resnet22", "resnet26", "resnet34", "resnet101", "resnet152", "preresnet152@0")
NAMES = [name for name in model_names() if not name.startswith(DEEP)]
SHAPES = {"image": (3, 32, 32), "series": (9, 128), "text": (20,), "any": (30,)}


def build(name: str, shape: tuple[int, ...] | None = None) -> tuple[ClientModel, Tensor]:
    """A network without storage, and a batch of three inputs for it."""
    kind = ENTRIES[name.partition("@")[0]].kind
    shape = shape or SHAPES[kind]
    with torch.device("meta"):
        model = build_model(name, shape, 10, vocabulary=50 if kind == "text" else None)
        return model, torch.zeros(3, *shape, dtype=torch.int64 if kind == "text" else torch.float32)


@pytest.mark.parametrize("name", NAMES)
def test_features_are_flat_and_the_head_turns_them_into_scores_in_double_precision_too(name: str) -> None:
    model, x = build(name)
    model.double()
    x = x.double() if x.is_floating_point() else x
    features = model.features(x)
    assert features.shape == (3, model.feature_dim)
    assert model.head(features).shape == (3, 10)
    scores = model(x)
    assert scores.shape == (3, 10)
    assert scores.dtype == torch.float64
    assert isinstance(model.head, nn.Linear)


@pytest.mark.parametrize("name", [name for name in NAMES if ENTRIES[name.partition("@")[0]].kind == "image"])
def test_the_smallest_image_works_and_a_smaller_one_is_refused(name: str) -> None:
    side = ENTRIES[name.partition("@")[0]].min_side
    model, x = build(name, (1, side, side))
    assert model.eval()(x).shape == (3, 10)
    with pytest.raises(PotluckError, match=f"'{name}'"):
        build(name, (1, side - 1, side))


@pytest.mark.parametrize("name", ["small-mlp", "small-cnn", "small-wide", "mlp-2"])
def test_many_copies_can_run_as_one(name: str) -> None:
    copies = [build_model(name, (1, 8, 8), 10) for _ in range(3)]
    parameters, buffers = stack_module_state(copies)
    x = torch.rand(3, 4, 1, 8, 8)
    together = vmap(lambda p, b, x: functional_call(copies[0], (p, b), (x,)))(parameters, buffers, x)
    for place, model in enumerate(copies):
        torch.testing.assert_close(together[place], model(x[place]))


def test_a_patch_that_does_not_fit_is_explained() -> None:
    with pytest.raises(PotluckError, match=r"patches of 16×16, which do not fit input_shape \(3, 40, 32\)"):
        build("vit-b-16", (3, 40, 32))


def test_the_tiny_transformer_takes_finer_patches_on_small_images() -> None:
    assert build("vit-tiny", (1, 8, 8))[0].positions.shape == (1, 1 + 16, 64)
    assert build("vit-tiny", (1, 28, 28))[0].positions.shape == (1, 1 + 49, 64)
