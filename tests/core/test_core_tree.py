"""States are flattened and restored without pickle."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import nn

from potluck import wire as codec
from potluck.core import tree


@dataclass
class Server:
    head: nn.Linear
    store: dict[int, torch.Tensor] = field(default_factory=dict)
    pairs: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    count: int = 0
    note: str | None = None


def test_a_state_survives_bytes():
    state = Server(nn.Linear(2, 2), {3: torch.ones(2)}, [(torch.zeros(1), 4)], 7)
    fresh = Server(nn.Linear(2, 2))
    back = tree.unflatten(codec.decode_state(codec.encode_state(tree.flatten(state))), fresh)
    assert torch.equal(back.head.weight, state.head.weight)
    assert isinstance(back.head, nn.Linear)
    assert torch.equal(back.store[3], torch.ones(2))
    assert back.pairs[0][1] == 4
    assert isinstance(back.pairs[0], tuple)
    assert (back.count, back.note) == (7, None)


def test_flattening_copies():
    tensor = torch.zeros(2)
    flat = tree.flatten({"a": tensor})
    tensor.add_(1)
    assert tree.unflatten(flat)["a"].sum() == 0


def test_an_optimizer_state_survives_bytes():
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    flat = codec.decode_state(codec.encode_state(tree.flatten(optimizer.state_dict())))
    restored = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    restored.load_state_dict(tree.unflatten(flat))
    assert torch.equal(
        restored.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )


def test_state_that_cannot_be_saved_is_named():
    with pytest.raises(TypeError, match="'/a' is a set"):
        tree.flatten({"a": {1, 2}})


def test_the_order_of_dimensions_in_memory_survives():
    across = torch.arange(6.0).reshape(2, 3).t()
    images = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    part = torch.arange(12.0).reshape(3, 4)[:, 1:3]
    back = tree.unflatten(tree.flatten({"across": across, "images": images, "part": part}))
    assert torch.equal(back["across"], across)
    assert back["across"].stride() == (1, 3)
    assert back["images"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(back["part"], part)
    assert back["part"].is_contiguous()


def test_flat_state_is_a_copy_by_default():
    live = torch.zeros(2)
    copied, same = tree.flatten([live]), tree.flatten([live], copy=False)
    live += 1
    assert copied.tensors["/0"].tolist() == [0, 0]
    assert same.tensors["/0"].tolist() == [1, 1]


class Point(NamedTuple):
    x: torch.Tensor
    y: int


@dataclass
class Counted:
    total: torch.Tensor
    steps: int = field(init=False, default=0)


@pytest.mark.parametrize(
    "state",
    [
        {"a": {"b": torch.zeros(1)}, "a/b": torch.ones(1)},
        {1: torch.zeros(1), "1": torch.ones(1)},
        {"a": torch.zeros(1), "a#2": torch.ones(1), "": {"a": torch.full((1,), 2.0)}},
    ],
)
def test_names_that_look_alike_keep_their_own_tensors(state):
    back = tree.unflatten(codec.decode_state(codec.encode_state(tree.flatten(state))))
    assert repr(back) == repr(state)


def test_ordinary_names_stay_readable():
    flat = tree.flatten({"model": {"fc.weight": torch.zeros(1)}, "list": [torch.ones(1)]})
    assert list(flat.tensors) == ["/model/fc.weight", "/list/0"]


@pytest.mark.parametrize("state", [{"a": {(0, 1): torch.zeros(1)}}, {"a": {b"x": 1}}])
def test_a_key_that_json_cannot_hold_is_refused(state):
    with pytest.raises(TypeError, match="'/a' has the key .* cannot be saved"):
        tree.flatten(state)


def test_a_dict_that_would_come_back_as_another_kind_is_refused():
    with pytest.raises(TypeError, match="is a Counter"):
        tree.flatten({"seen": Counter("ab")})


def test_fields_that_init_does_not_take_and_named_tuples_come_back():
    state = {"count": Counted(torch.ones(1)), "at": Point(torch.ones(2), 3)}
    state["count"].steps = 5
    fresh = {"count": Counted(torch.zeros(1)), "at": Point(torch.zeros(2), 0)}
    back = tree.unflatten(tree.flatten(state), fresh)
    assert back["count"].steps == 5
    assert isinstance(back["at"], Point)
    assert back["at"].y == 3


def test_flat_states_are_equal_where_names_layout_and_bits_are():
    state = {"w": torch.tensor([1.0, 2.0]), "rounds": 3}
    assert tree.equal(tree.flatten(state), tree.flatten({"w": torch.tensor([1.0, 2.0]), "rounds": 3}))
    for different in (
        {"w": torch.tensor([1.0, 2.5]), "rounds": 3},
        {**state, "rounds": 4},
        {"w": state["w"]},
    ):
        assert not tree.equal(tree.flatten(state), tree.flatten(different))
