"""Width-nested families: slices by shape, the scaler, static batch norm."""

import pytest
import torch
from torch import Tensor

from potluck.core.errors import PotluckError
from potluck.core.random import seeded
from potluck.models import build_model, count_parameters, groups, model_names
from potluck.models.entry import InputSpec
from potluck.models.nested import Scaler, SlimCNN

RATES = ("1", "0.5", "0.25", "0.125", "0.0625")


def test_counts_of_heterofls_resnet152_at_five_rates() -> None:
    with torch.device("meta"):
        counts = [count_parameters(build_model(f"preresnet152@{rate}", (3, 32, 32), 10)) for rate in RATES]
    assert counts == [58148938, 14578730, 3665434, 926738, 236878]


def test_counts_of_the_small_family() -> None:
    # three convolutions of 64, 128, 128 without bias, two numbers per normalised channel, a head of 128·10+10
    full = 64 * 9 + 64 * 128 * 9 + 128 * 128 * 9 + 2 * (64 + 128 + 128) + 1290
    half = 32 * 9 + 32 * 64 * 9 + 64 * 64 * 9 + 2 * (32 + 64 + 64) + 650
    assert count_parameters(build_model("slim-cnn@1", (1, 8, 8), 10)) == full
    assert count_parameters(build_model("slim-cnn@0.5", (1, 8, 8), 10)) == half
    assert groups["width5"] == tuple(f"slim-cnn@{rate}" for rate in RATES)


@pytest.mark.parametrize("family", ["slim-cnn", "preresnet18", "preresnet152"])
def test_every_rate_has_the_same_names_and_no_larger_shapes(family: str) -> None:
    with torch.device("meta"):
        widest = build_model(family, (3, 32, 32), 10).state_dict()
        for rate in ("0.5", "0.3", "0.001"):
            part = build_model(f"{family}@{rate}", (3, 32, 32), 10).state_dict()
            assert list(part) == list(widest)
            for name, tensor in part.items():
                assert all(a <= b for a, b in zip(tensor.shape, widest[name].shape, strict=True))


def window(full: int, size: int, offset: int) -> Tensor:
    """The indices that FedRolex keeps of a layer: a window that wraps around."""
    return (torch.arange(size) + offset) % full


@pytest.mark.parametrize(
    ("whole_name", "part_name"),
    [("slim-cnn@0.25", "slim-cnn@0.125"), ("preresnet18@0.125", "preresnet18@0.0625")],
)
@pytest.mark.parametrize("offset", [0, 5])
def test_a_slice_by_shape_is_the_wide_network_with_all_other_channels_off(
    whole_name: str, part_name: str, offset: int
) -> None:
    with seeded("nested"):
        wide_network = build_model(whole_name, (1, 8, 8), 3)
        part = build_model(part_name, (1, 8, 8), 3)
    pieces = part.state_dict()
    for name, tensor in wide_network.state_dict().items():
        for axis, size in enumerate(pieces[name].shape):
            full = tensor.shape[axis]
            kept_indices = window(full, size, offset)
            off = torch.ones(full, dtype=torch.bool)
            off[kept_indices] = False
            tensor.index_fill_(axis, off.nonzero().flatten(), 0.0)
        piece = tensor
        for axis, size in enumerate(pieces[name].shape):
            piece = piece.index_select(
                axis,
                window(tensor.shape[axis], size, offset) if size < tensor.shape[axis] else torch.arange(size),
            )
        pieces[name].copy_(piece)
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(part.eval()(x), wide_network.eval()(x))


def test_the_scaler_divides_in_training_only() -> None:
    scaler = Scaler(0.25)
    assert scaler.train()(torch.tensor(3.0)) == 12.0
    assert scaler.eval()(torch.tensor(3.0)) == 3.0


def test_the_switches_of_the_constructor() -> None:
    model = build_model("slim-cnn@0.5", (1, 8, 8), 10)
    assert model.width_rate == 0.5
    assert [layer.rate for layer in model.modules() if isinstance(layer, Scaler)] == [0.5] * 3
    assert not list(model.buffers())
    plain = SlimCNN(InputSpec((1, 8, 8), 10), 0.5, scaler=False, track_running_stats=True)
    assert not any(isinstance(layer, Scaler) for layer in plain.modules())
    assert "norm1.bn.running_mean" in plain.state_dict()
    assert list(dict(plain.named_parameters())) == list(dict(model.named_parameters()))


@pytest.mark.parametrize("rate", ["0", "1.5", "-0.5", "nan", "half", ""])
def test_a_rate_outside_zero_to_one_is_refused(rate: str) -> None:
    with pytest.raises(PotluckError, match="Unknown model 'slim-cnn@"):
        build_model(f"slim-cnn@{rate}", (1, 8, 8), 10)
    assert "slim-cnn@0.5" in model_names()


def test_widths_are_rounded_up_and_never_vanish() -> None:
    assert build_model("slim-cnn@0.3", (1, 8, 8), 10).conv1.out_channels == 20  # 19.2
    assert build_model("slim-cnn@0.001", (1, 8, 8), 10).conv1.out_channels == 1
    assert build_model("slim-cnn@0.55", (1, 8, 8), 10).conv2.out_channels == 71  # 70.4
