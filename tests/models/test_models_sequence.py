"""Text, sensor and table networks."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from potluck.core.errors import PotluckError
from potluck.core.random import generator, seeded
from potluck.models import build_model, count_parameters, groups


def learn(name: str, x: Tensor, y: Tensor, vocabulary: int | None = None) -> float:
    """Accuracy on the last hundred samples after some Adam steps on the others."""
    with seeded("learn", name):
        model = build_model(name, tuple(x.shape[1:]), 2, vocabulary=vocabulary)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch in torch.arange(len(y) - 100).repeat(3).split(20):
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        return float((model.eval()(x[-100:]).argmax(1) == y[-100:]).float().mean())


@pytest.mark.parametrize("name", groups["text3"])
def test_text_networks_find_the_word_that_decides(name: str) -> None:
    source = generator("text")
    x = torch.randint(3, 30, (400, 12), generator=source)
    y = torch.randint(0, 2, (400,), generator=source)
    x[torch.arange(400), torch.randint(0, 8, (400,), generator=source)] = 1 + y
    x[:, 10:] = 0
    assert learn(name, x, y, vocabulary=30) > 0.9


@pytest.mark.parametrize("name", groups["har3"])
def test_sensor_networks_tell_a_slow_wave_from_a_fast_one(name: str) -> None:
    source = generator("har")
    y = torch.randint(0, 2, (400,), generator=source)
    phase = 6.28 * torch.rand(400, 1, 1, generator=source)
    x = torch.sin(torch.arange(64) * (0.1 + 0.4 * y.reshape(-1, 1, 1)) + phase).repeat(1, 3, 1)
    assert learn(name, x, y) > 0.9


@pytest.mark.parametrize("name", groups["mlp3"])
def test_table_networks_learn_a_rule_that_is_not_linear(name: str) -> None:
    x = torch.rand(600, 4, generator=generator("mlp")) * 2 - 1
    y = (x[:, 0] * x[:, 1] > 0).long()
    assert learn(name, x, y) > 0.8
    assert build_model(name, (2, 3, 4), 5).features(torch.rand(7, 2, 3, 4)).shape == (7, 64)


@pytest.mark.parametrize("name", groups["text3"])
def test_padding_changes_nothing_and_an_empty_text_is_finite(name: str) -> None:
    model = build_model(name, (9,), 4, vocabulary=20).double().eval()
    x = torch.tensor([[5, 7, 11, 0, 0, 0, 0, 0, 0], [3, 4, 5, 6, 7, 8, 9, 1, 2], [0] * 9])
    torch.testing.assert_close(model(x)[0], model(x[:1, :4])[0])
    assert model(x).isfinite().all()
    assert model(x).dtype == torch.float64


def test_word_order_matters_to_the_recurrent_network_only_where_it_should() -> None:
    words = torch.tensor([[5, 7, 11, 2]])
    turned = words.flip(1)
    bag = build_model("text-bag", (4,), 2, vocabulary=20)
    torch.testing.assert_close(bag.features(words), bag.features(turned))
    lstm = build_model("text-lstm", (4,), 2, vocabulary=20)
    lstm.backward_.load_state_dict(lstm.onward.state_dict())
    # with equal weights, reading the reversed text swaps the two directions
    torch.testing.assert_close(lstm.features(words), lstm.features(turned).roll(32, 1))


def test_counts_by_hand() -> None:
    def count(name: str, shape: tuple[int, ...], vocabulary: int | None = None) -> int:
        return count_parameters(build_model(name, shape, 6, vocabulary=vocabulary))

    head = 64 * 6 + 6
    assert count("mlp-2", (10,)) == 10 * 128 + 128 + 128 * 64 + 64 + head
    assert count("text-bag", (20,), 100) == 100 * 64 + 64 * 64 + 64 + head
    assert count("text-lstm", (20,), 100) == 100 * 64 + 2 * 4 * 32 * (64 + 32 + 2) + head
    assert count("har-cnn", (9, 128)) == 9 * 32 * 5 + 32 + 32 * 64 * 5 + 64 + 512 * 64 + 64 + head
    assert count("har-lstm", (9, 128)) == 9 * 32 * 5 + 32 + 4 * 64 * (32 + 64 + 2) + head


def test_text_needs_a_vocabulary_and_the_right_shape() -> None:
    with pytest.raises(PotluckError, match="'text-bag' reads word numbers and needs vocabulary=N"):
        build_model("text-bag", (20,), 4)
    with pytest.raises(PotluckError, match=r"takes text input of shape \(length\), not \(3, 32, 32\)"):
        build_model("text-lstm", (3, 32, 32), 4, vocabulary=10)
    with pytest.raises(PotluckError, match=r"takes series input of shape \(channels, steps\)"):
        build_model("har-cnn", (128,), 4)
