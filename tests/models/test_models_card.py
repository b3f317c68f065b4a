"""The card of a network, against operations counted by hand."""

import torch

from potluck.models import describe, example_shape, measure_speed


def test_operations_of_dense_and_convolutional_layers() -> None:
    assert describe("mlp-1", (30,), 10).flops == 2 * (30 * 64 + 64 * 10)
    convolutions = 28 * 28 * 16 * 3 * 25 + 10 * 10 * 32 * 16 * 25
    dense = 800 * 2000 + 2000 * 500 + 500 * 10
    assert describe("cnn-1", (3, 32, 32), 10).flops == 2 * (convolutions + dense)


def test_operations_of_recurrence_and_attention() -> None:
    step = 4 * 32 * (64 + 32)  # four gates of 32 from 64 inputs and 32 states
    assert describe("text-lstm", (20,), 10, vocabulary=100).flops == 2 * (2 * 20 * step + 64 * 10)
    tokens, width = 65, 64
    layer = tokens * width * (3 * width + width + 8 * width) + 2 * tokens * tokens * width
    patches = 64 * 3 * 16 * width
    assert describe("vit-tiny", (3, 32, 32), 10).flops == 2 * (4 * layer + patches + width * 10)


def test_the_card_adds_up() -> None:
    card = describe("resnet18", (3, 32, 32), 10)
    assert card.parameters == 11181642 == sum(layer.parameters for layer in card.layers)
    assert card.buffers == 9600 + 20  # statistics, and a counter per batch norm
    assert card.mib == (4 * (11181642 + 9600) + 8 * 20) / 2**20
    assert card.feature_dim == 512
    assert card.layers[0].name == "stem.conv"
    assert card.layers[0].output_shape == (64, 16, 16)
    assert (card.layers[-1].name, card.layers[-1].type, card.layers[-1].output_shape) == (
        "head",
        "Linear",
        (10,),
    )


def test_parameters_that_no_layer_holds_are_listed_by_name() -> None:
    card = describe("vit-tiny", (1, 8, 8), 10)
    assert card.layers[0].name == "token, positions"
    assert sum(layer.parameters for layer in card.layers) == card.parameters


def test_describing_and_measuring_leave_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    describe("fedhe-9", (1, 28, 28), 10)
    assert measure_speed("small-mlp", (1, 8, 8), 10, seconds=0.01) > 0
    assert measure_speed("text-bag", (8,), 4, seconds=0.01, vocabulary=20) > 0
    assert torch.equal(before, torch.get_rng_state())


def test_the_card_reads_as_a_table_with_totals() -> None:
    lines = str(describe("mlp-1", (30,), 10)).splitlines()
    assert lines[0] == "mlp-1: dense layers 64 on flat input, 64 features (input 30, 10 classes)"
    assert lines[3].split() == ["layers.0", "Dense", "64", "1,984"]
    assert lines[-1] == "2,634 parameters, 0 buffers, 0.01 MiB, 0.01 MFLOPs per sample, 64 features"


def test_every_model_has_an_input_that_suits_it() -> None:
    assert example_shape("resnet50+512") == (3, 32, 32)
    assert describe("text-bag", example_shape("text-bag"), 4, vocabulary=10).feature_dim == 64
    assert describe("har-lstm", example_shape("har-lstm"), 4, vocabulary=10).layers[0].output_shape == (
        32,
        64,
    )
