"""HetLoRA: truncation, zero-padding, weights by the size of changes, and the bias of averaging factors."""

from __future__ import annotations

import torch

from potluck import kit
from potluck.core.method import Update
from potluck.methods.hetlora import HetLoRA
from potluck.testing import check_method
from support.adapters import LAYER, change, check_with_adapters, mean_change, random_tensors, ranked, updates
from support.tiny import context

A, B = f"{LAYER}.lora_a.weight", f"{LAYER}.lora_b.weight"


def test_clients_get_the_leading_ranks_of_the_largest_adapter() -> None:
    fed = ranked((1, 2, 4))
    method, ctx = HetLoRA(), context(fed)
    state = method.init_server(ctx)
    (group,) = state
    assert state[group][A].shape == (4, 4)
    for rank, info in zip((1, 2, 4), fed.task.clients, strict=True):
        sent = method.broadcast(state, info, ctx).tensors
        assert torch.equal(sent[A], state[group][A][:rank])
        assert torch.equal(sent[B], state[group][B][:, :rank])
        assert sent["head.weight"].shape == (3, 3)


def test_padded_adapters_count_by_the_norm_of_their_change() -> None:
    fed = ranked((1, 2))
    method, ctx = HetLoRA(), context(fed)
    sent = updates(fed, kit.Weights)
    (new,) = method.server(method.init_server(ctx), sent, ctx).values()
    small, two = (update.payload.tensors for update in sent)
    norms = [float(torch.linalg.norm(tensors[B] @ tensors[A])) for tensors in (small, two)]
    first, second = (norm / sum(norms) for norm in norms)
    assert torch.allclose(new[A][0], first * small[A][0] + second * two[A][0], atol=1e-12)
    assert torch.allclose(new[A][1], second * two[A][1], atol=1e-12)  # the first client has zeros here
    assert torch.allclose(new[B][:, 1], second * two[B][:, 1], atol=1e-12)
    samples = [info.samples for info in fed.task.clients]
    expected = (samples[0] * small["head.weight"] + samples[1] * two["head.weight"]) / sum(samples)
    assert torch.allclose(new["head.weight"], expected, atol=1e-12)


def test_without_sparsity_weights_clients_count_by_samples() -> None:
    fed = ranked((2, 2))
    method, ctx = HetLoRA(sparsity_weighted=False), context(fed)
    sent = updates(fed, kit.Weights)
    (new,) = method.server(method.init_server(ctx), sent, ctx).values()
    small, two = (update.payload.tensors[A] for update in sent)
    assert torch.allclose(new[A], small / 3 + 2 * two / 3, atol=1e-12)  # 4 and 8 samples


def test_the_mean_of_factors_is_not_the_mean_of_products() -> None:
    """Two clients with opposite signs of both factors have one change, and their mean of factors has none."""
    fed = ranked((2, 2))
    method, ctx = HetLoRA(sparsity_weighted=False), context(fed)
    tensors = random_tensors(fed, 0)
    opposite = {name: -tensor if "lora_" in name else tensor for name, tensor in tensors.items()}
    small, large = fed.task.clients
    sent = [Update(small, kit.Weights(tensors)), Update(large, kit.Weights(opposite))]
    (new,) = method.server(method.init_server(ctx), sent, ctx).values()
    assert torch.allclose(mean_change(fed, sent), change(fed, 0, tensors), atol=1e-12)
    # (1/3 - 2/3)² = 1/9 of the change is left.
    assert torch.allclose(new[B] @ new[A], change(fed, 0, tensors) / 9, atol=1e-12)


def test_it_is_a_method() -> None:
    check_method(HetLoRA())  # networks without adapters: plain averaging
    check_with_adapters(HetLoRA())
