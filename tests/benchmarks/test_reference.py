"""Reference loops compute and send the same numbers as the methods' clients."""

from __future__ import annotations

import pytest
import torch

from benchmarks.reference import REFERENCE_LOOPS
from benchmarks.training import FULL, TINY, MethodPair, measure_methods
from potluck.methods import METHODS


def test_every_method_has_its_bare_loop() -> None:
    assert set(REFERENCE_LOOPS) <= set(METHODS)


@pytest.mark.parametrize("name", REFERENCE_LOOPS)
def test_a_round_by_hand_gives_the_methods_numbers(name: str) -> None:
    pair = MethodPair(name, 20, TINY)
    pair.ours()
    with pytest.raises(AssertionError, match="differ"):
        pair.check()
    pair.bare()
    pair.check()
    for action in (pair.bare, pair.ours):  # what a client keeps from job to job is the same as well
        action()
    pair.check()


def test_a_bare_loop_that_leaves_something_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = MethodPair("fedprox", 20, TINY)
    monkeypatch.setattr(pair, "by_hand", REFERENCE_LOOPS["fedavg"])
    pair.ours()
    pair.bare()
    with pytest.raises(AssertionError, match="the two models differ"):
        pair.check()


def test_something_else_to_send_is_noticed() -> None:
    pair = MethodPair("fedgh", 20, TINY)
    pair.ours()
    pair.bare()
    pair.sent_by_hand = {**pair.sent_by_hand, "means": torch.zeros(1)}
    with pytest.raises(AssertionError, match="would send"):
        pair.check()
    pair.sent_by_hand = {name: value for name, value in pair.sent.items() if name != "means"}
    with pytest.raises(AssertionError, match="would send"):
        pair.check()


def test_networks_are_those_that_a_method_can_train() -> None:
    assert FULL.network("fedavg") == "cnn-3"
    assert FULL.network("heterofl") == "slim-cnn@0.5"
    assert [row.what for row in measure_methods(quick=True)] == [
        "standalone, small-mlp, batch 10",
        "fedavg, small-mlp, batch 10",
    ]
