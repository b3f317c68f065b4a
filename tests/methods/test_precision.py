"""float64 means float64: nothing depends on torch's default precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from potluck.core import tree
from potluck.core.random import seeded
from potluck.experiment import make_method
from potluck.methods import METHODS, method_class
from potluck.models import build_model
from potluck.testing import small_federation
from tiny import make_loop

QUICK: dict[str, dict[str, Any]] = {"fedtgp": {"server_epochs": 2}, "fedgen": {"server_steps": 2}}


@contextmanager
def default(precision: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(precision)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def outcome(name: str, precision: torch.dtype) -> dict[str, torch.Tensor]:
    """The server's and every client's tensors after three rounds in float64."""
    method = make_method(method_class(name), QUICK.get(name, {}))
    federation = small_federation(method, dtype=torch.float64)
    with default(precision):
        loop = make_loop(method, federation, rounds=3)
        loop.run()
        context = loop.server.context()
        parts = [loop.dispatcher.fetch(index, context) for index in range(len(federation.members))]
    parts.append(tree.flatten(loop.progress.state))
    return {
        f"{number}{key}": tensor for number, flat in enumerate(parts) for key, tensor in flat.tensors.items()
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_float64_run_is_the_same_whatever_torch_is_set_to(name: str):
    single, double = outcome(name, torch.float32), outcome(name, torch.float64)
    assert single.keys() == double.keys()
    for key, tensor in single.items():
        assert tensor.dtype in (torch.float64, torch.int64, torch.bool), key
        assert torch.equal(tensor, double[key]), key


def test_first_weights_are_the_same_whatever_torch_is_set_to():
    made = []
    for precision in (torch.float32, torch.float64):
        with default(precision), seeded(1, "model"):
            made.append(build_model("small-cnn", (1, 8, 8), 10).conv1.weight)
    assert made[0].dtype == made[1].dtype == torch.float32
    assert torch.equal(*made)
    with default(torch.float64):
        with seeded(1):
            pass
        assert torch.get_default_dtype() == torch.float64
