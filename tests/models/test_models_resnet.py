"""Residual networks: counts, names that nest over depth, stages that can be cut."""

import pytest
import torch

from potluck.models import build_model, count_parameters, groups

FEDIN = {
    "resnet10": (4910922, 5760),
    "resnet14": (10812234, 8832),
    "resnet18": (11181642, 9600),
    "resnet22": (17082954, 12672),
    "resnet26": (17452362, 13440),
}


def meta(name: str, shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10) -> torch.nn.Module:
    with torch.device("meta"):
        return build_model(name, shape, classes)


@pytest.mark.parametrize("name", FEDIN)
def test_fedin_counts_of_parameters_and_batch_norm_statistics(name: str) -> None:
    model = meta(name)
    statistics = sum(buffer.numel() for key, buffer in model.named_buffers() if "running" in key)
    assert (count_parameters(model), statistics) == FEDIN[name]


def test_the_mean_of_the_five_is_the_papers_12_28_million() -> None:
    assert sum(count_parameters(meta(name)) for name in groups["resnet5"]) == 61440114


def test_a_one_channel_stem_has_6272_parameters_fewer() -> None:
    assert count_parameters(meta("resnet18")) - count_parameters(meta("resnet18", (1, 28, 28))) == 6272


def test_the_cifar_stem_is_3x3_and_keeps_the_side() -> None:
    difference = count_parameters(meta("resnet18")) - count_parameters(meta("resnet18-cifar"))
    assert difference == 3 * 64 * (7 * 7 - 3 * 3)
    assert meta("resnet18-cifar").stem(torch.rand(1, 3, 32, 32, device="meta")).shape == (1, 64, 32, 32)


@pytest.mark.parametrize("group", ["resnet5", "nested5"])
def test_the_names_of_a_shallow_network_are_among_the_deepest_ones_with_equal_shapes(group: str) -> None:
    deepest = {key: tensor.shape for key, tensor in meta(groups[group][-1]).state_dict().items()}
    sizes = []
    for name in groups[group]:
        tensors = meta(name).state_dict()
        assert all(deepest[key] == tensor.shape for key, tensor in tensors.items())
        sizes.append(len(tensors))
    assert sizes == sorted(set(sizes))  # strictly deeper each time


@pytest.mark.parametrize(("shape", "side"), [((3, 32, 32), 8), ((1, 28, 28), 7)])
def test_stages_give_the_features_that_fedin_exchanges(shape: tuple[int, int, int], side: int) -> None:
    model = build_model("resnet10", shape, 10).eval()
    x = torch.rand(2, *shape)
    stem, *blocks = model.stages
    s_in = stem(x)
    assert s_in.shape == (2, 64, side, side)
    s_out = s_in
    for stage in blocks:
        s_out = stage(s_out)
    assert s_out.shape == (2, 512, 1, 1)
    assert torch.equal(model.head(model.pool(s_out)), model(x))


def test_the_small_family_shares_its_shapes_over_all_depths() -> None:
    x = torch.rand(2, 1, 8, 8)
    for name in groups["nested5"]:
        model = build_model(name, (1, 8, 8), 10)
        shapes = [tuple(x.shape[1:])]
        y = x
        for stage in model.stages:
            y = stage(y)
            shapes.append(tuple(y.shape[1:]))
        assert shapes == [(1, 8, 8), (8, 8, 8), (8, 8, 8), (16, 4, 4), (32, 2, 2)]
        assert model.feature_dim == 32
