"""FlexLoRA: the mean of products, and the best approximation of it for every rank."""

from __future__ import annotations

import pytest
import torch

from potluck import kit
from potluck.methods.flexlora import FlexLoRA
from potluck.testing import check_method
from support.adapters import change, check_with_adapters, mean_change, ranked, updates
from support.tiny import context


def broadcast_changes(fed, state) -> list[torch.Tensor]:
    method = FlexLoRA()
    return [
        change(fed, info.index, method.broadcast(state, info, context(fed)).tensors)
        for info in fed.task.clients
    ]


@pytest.mark.parametrize("alpha", [None, 6.0])
def test_at_full_rank_the_aggregate_is_the_mean_of_the_products(alpha: float | None) -> None:
    fed = ranked((1, 2, 4), alpha=alpha)  # the layer has 4 inputs: rank 4 is full
    method, ctx = FlexLoRA(), context(fed)
    sent = updates(fed, kit.Weights)
    state = method.server(method.init_server(ctx), sent, ctx)
    full = broadcast_changes(fed, state)[2]
    assert float((full - mean_change(fed, sent)).abs().max()) < 1e-12


def test_a_smaller_rank_gets_the_largest_singular_values() -> None:
    fed = ranked((1, 2, 4), alpha=2.0)
    method, ctx = FlexLoRA(), context(fed)
    sent = updates(fed, kit.Weights)
    mean = mean_change(fed, sent)
    low_rank, two, _ = broadcast_changes(fed, method.server(method.init_server(ctx), sent, ctx))
    sizes = torch.linalg.svdvals(mean)
    assert torch.linalg.matrix_rank(low_rank) == 1
    # Eckart and Young: what is lost has the norm of the singular values that are left out.
    assert torch.linalg.norm(mean - low_rank) == pytest.approx(float(sizes[1:].norm()), rel=1e-9)
    assert torch.linalg.norm(mean - two) == pytest.approx(float(sizes[2:].norm()), rel=1e-9)


def test_one_client_gets_back_the_change_that_it_sent() -> None:
    fed = ranked((2,))
    method, ctx = FlexLoRA(), context(fed)
    sent = updates(fed, kit.Weights)
    (back,) = broadcast_changes(fed, method.server(method.init_server(ctx), sent, ctx))
    assert torch.allclose(back, change(fed, 0, sent[0].payload.tensors), atol=1e-12)


def test_before_the_first_answers_nothing_is_changed() -> None:
    fed = ranked((1, 2, 4))
    assert all(
        not bool(delta.any()) for delta in broadcast_changes(fed, FlexLoRA().init_server(context(fed)))
    )


def test_it_is_a_method() -> None:
    check_method(FlexLoRA())  # networks without adapters: plain averaging
    check_with_adapters(FlexLoRA())
