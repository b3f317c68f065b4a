"""States come apart and back together without pickle."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from potluck import codec
from potluck.core import tree


@dataclass
class Server:
    header: nn.Linear
    store: dict[int, torch.Tensor] = field(default_factory=dict)
    pairs: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    count: int = 0
    note: str | None = None


def test_a_state_survives_bytes():
    state = Server(nn.Linear(2, 2), {3: torch.ones(2)}, [(torch.zeros(1), 4)], 7)
    fresh = Server(nn.Linear(2, 2))
    back = tree.unflatten(codec.decode_state(codec.encode_state(tree.flatten(state))), fresh)
    assert torch.equal(back.header.weight, state.header.weight)
    assert isinstance(back.header, nn.Linear)
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
    other = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    other.load_state_dict(tree.unflatten(flat))
    assert torch.equal(
        other.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )


def test_what_cannot_be_saved_is_named():
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


def test_a_flat_state_is_a_copy_unless_told():
    live = torch.zeros(2)
    copied, same = tree.flatten([live]), tree.flatten([live], copy=False)
    live += 1
    assert copied.tensors["/0"].tolist() == [0, 0]
    assert same.tensors["/0"].tolist() == [1, 1]
