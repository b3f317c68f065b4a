"""Names, groups and assignment."""

import pytest
import torch

from potluck.core.errors import PotluckError
from potluck.core.model import without_initialization
from potluck.core.random import seeded
from potluck.models import assign, build_model, groups, model_names, model_summary, resolve_models, smallest


def test_every_name_has_a_one_line_summary() -> None:
    for name in model_names():
        assert model_summary(name)
        assert "\n" not in model_summary(name)


def test_a_group_a_comma_list_and_a_list_resolve() -> None:
    assert resolve_models("cnn5") == ["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"]
    assert resolve_models("cnn-1, small-mlp") == ["cnn-1", "small-mlp"]
    assert resolve_models(["small-mlp", "cnn5"])[:2] == ["small-mlp", "cnn-1"]


def test_every_member_of_every_group_is_a_model() -> None:
    for group, members in groups.items():
        assert resolve_models(group) == list(members)


def test_an_unknown_name_offers_the_nearest_model_or_group() -> None:
    with pytest.raises(PotluckError, match=r"Unknown model 'cnn-9'. Did you mean 'cnn-\d'"):
        resolve_models("cnn-9")
    with pytest.raises(PotluckError, match="Did you mean 'small5'"):
        resolve_models("smal5")
    with pytest.raises(PotluckError, match="Did you mean 'small-mlp'"):
        build_model("small-mpl", (1, 8, 8), 10)
    with pytest.raises(PotluckError, match="at least one model"):
        resolve_models([])


@pytest.mark.parametrize("name", ["cnn-1@0.5", "cnn-1+", "cnn-1+0", "cnn-1+x", ""])
def test_a_suffix_that_means_nothing_is_unknown(name: str) -> None:
    with pytest.raises(PotluckError, match="Unknown model"):
        build_model(name, (3, 32, 32), 10)


def test_client_i_gets_model_i_mod_x() -> None:
    assert assign(["a", "b", "c"], 5) == ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize("name", ["small-mlp", "cnn-5", "mobilenet-v2", "fedhe-0", "vit-tiny"])
def test_shapes_alone_are_those_of_a_built_network_and_nothing_is_drawn(name: str) -> None:
    before = torch.random.get_rng_state()
    with without_initialization():
        shape = build_model(name, (3, 32, 32), 10)
    assert torch.equal(torch.random.get_rng_state(), before)
    built = build_model(name, (3, 32, 32), 10).state_dict()
    assert all(tensor.is_meta for tensor in shape.parameters())
    assert {key: tensor.shape for key, tensor in shape.state_dict().items()} == {
        key: tensor.shape for key, tensor in built.items()
    }


def test_the_smallest_is_by_parameters_and_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    assert smallest(groups["cnn5"], (3, 32, 32), 10) == "cnn-5"
    assert torch.equal(before, torch.get_rng_state())


def test_the_seed_of_the_block_decides_the_weights() -> None:
    def weights(seed: int) -> torch.Tensor:
        with seeded(seed):
            return build_model("small-res", (1, 8, 8), 10).head.weight

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_feature_dim_projects_by_a_learned_layer() -> None:
    model = build_model("small-cnn", (1, 8, 8), 10, feature_dim=20)
    assert model.feature_dim == 20
    assert model.features(torch.rand(3, 1, 8, 8)).shape == (3, 20)
    assert model.projection.weight.shape == (20, 64)
    assert model.head.weight.shape == (10, 20)
    assert build_model("small-cnn", (1, 8, 8), 10, feature_dim=64).head.in_features == 64


def test_feature_dim_projects_by_two_layers_as_moon_does() -> None:
    model = build_model("small-cnn", (1, 8, 8), 10, feature_dim=20, projection="mlp")
    shapes = [tuple(parameter.shape) for parameter in model.projection.parameters()]
    assert shapes == [(64, 64), (64,), (20, 64), (20,)]
    assert model.head.weight.shape == (10, 20)


def test_a_plus_suffix_pools_features_without_learning_anything() -> None:
    model = build_model("small-mlp+32", (1, 8, 8), 10).eval()
    x = torch.rand(2, 1, 8, 8)
    pairs = model.base.features(x).reshape(2, 32, 2).mean(2)  # 64 to 32: the mean of each pair
    torch.testing.assert_close(model.features(x), pairs)
    assert not list(model.projection.parameters())
    wider = build_model("small-mlp+128", (1, 8, 8), 10).eval()
    torch.testing.assert_close(wider.features(x), wider.base.features(x).repeat_interleave(2, 1))


@pytest.mark.parametrize(
    ("shape", "classes", "dim"), [((8, 8), 10, None), ((1, 8, 8), 0, None), ((1, 8, 8), 10, 0)]
)
def test_wrong_numbers_are_refused_in_a_sentence(
    shape: tuple[int, ...], classes: int, dim: int | None
) -> None:
    with pytest.raises(PotluckError, match=r"takes image input|num_classes is 0|feature_dim is 0"):
        build_model("small-cnn", shape, classes, dim)
