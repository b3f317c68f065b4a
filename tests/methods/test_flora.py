"""FLoRA: stacked adapters whose product is the mean of all products, over any number of rounds."""

from __future__ import annotations

import pytest
import torch

from potluck import kit
from potluck.core.payload import PayloadError
from potluck.core.schema import check_payload
from potluck.methods.flora import FLoRA, Stacks, add_stack, changed_weights
from potluck.testing import check_method
from support.adapters import LAYER, change, check_with_adapters, mean_change, ranked, updates
from support.tiny import answer, context

LEFT, RIGHT = f"{LAYER}.left", f"{LAYER}.right"


@pytest.mark.parametrize("alpha", [None, 6.0])
def test_the_aggregate_is_the_mean_of_the_products(alpha: float | None) -> None:
    fed = ranked((1, 2), alpha=alpha)
    method, ctx = FLoRA(), context(fed)
    sent = updates(fed, kit.Weights)
    state = method.server(method.init_server(ctx), sent, ctx)
    (stacks,) = state.stacks.values()
    assert stacks[LEFT].shape == (5, 3)  # ranks 1 and 2, side by side
    assert float((stacks[LEFT] @ stacks[RIGHT] - mean_change(fed, sent)).abs().max()) < 1e-12


def test_rounds_add_up_also_where_the_stack_is_replaced_by_the_change() -> None:
    fed = ranked((2, 4))  # six ranks for a layer of 4 inputs
    method, ctx = FLoRA(), context(fed)
    sent = updates(fed, kit.Weights)
    state = method.init_server(ctx)
    for _ in range(3):
        state = method.server(state, sent, ctx)
    (stacks,) = state.stacks.values()
    assert stacks[LEFT].shape == (5, 4)
    assert float((stacks[LEFT] @ stacks[RIGHT] - 3 * mean_change(fed, sent)).abs().max()) < 1e-12


@pytest.mark.parametrize(("outputs", "inputs"), [(2, 5), (5, 2)])
def test_stacked_factors_multiply_to_the_change(outputs: int, inputs: int) -> None:
    left_factor, right = torch.randn(outputs, 3).double(), torch.randn(3, inputs).double()
    stacks: dict[str, torch.Tensor] = {}
    add_stack(stacks, "x", left_factor, right)
    assert torch.allclose(stacks["x.left"] @ stacks["x.right"], left_factor @ right, atol=1e-12)
    assert stacks["x.right"].shape[0] == 2


def test_clients_train_new_adapters_on_the_changed_weights_and_leave_the_frozen_ones() -> None:
    fed = ranked((1, 2))
    method, ctx = FLoRA(), context(fed)
    state = method.server(method.init_server(ctx), updates(fed, kit.Weights), ctx)
    me = fed.client(1)
    frozen = me.model.get_parameter(f"{LAYER}.base.weight").clone()
    message = method.broadcast(state, me.info, ctx)
    received = method.predict(me, message)
    (stacks,) = state.stacks.values()
    weight = received.get_parameter(f"{LAYER}.base.weight")
    assert torch.allclose(weight, frozen + stacks[LEFT] @ stacks[RIGHT], atol=1e-12)
    assert not received.get_parameter(f"{LAYER}.lora_b.weight").any()
    sent = answer(method, me, message).tensors
    assert sent[f"{LAYER}.lora_b.weight"].any()
    assert torch.equal(me.model.get_parameter(f"{LAYER}.base.weight"), frozen)
    own = method.predict(me, None)
    x = me.test.x
    with changed_weights(me.model, message.stacks):
        assert torch.allclose(own(x), me.model(x), atol=1e-12)
    assert not torch.allclose(own(x), me.model(x))


def test_a_new_client_gets_all_rounds() -> None:
    fed = ranked((1, 2, 4))
    method, ctx = FLoRA(), context(fed)
    sent = updates(fed, kit.Weights)[:2]
    state = method.server(method.server(method.init_server(ctx), sent, ctx), sent, ctx)
    message = method.broadcast(state, fed.task.clients[2], ctx)
    expected = 2 * mean_change(fed, sent)
    assert torch.allclose(message.stacks[LEFT] @ message.stacks[RIGHT], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("left_shape", "right", "sentence"),
    [
        ((5, 2), None, "no two factors"),
        ((6, 2), (2, 4), "must give a change of 5×4"),
        ((5, 2), (3, 4), "different ranks"),
    ],
)
def test_stacks_of_wrong_shapes_are_refused(
    left_shape: tuple[int, int], right: tuple[int, int] | None, sentence: str
) -> None:
    fed = ranked((1,))
    stacks = {LEFT: torch.zeros(left_shape).double()}
    if right is not None:
        stacks[RIGHT] = torch.zeros(right).double()
    with pytest.raises(PayloadError, match=sentence):
        check_payload(Stacks({}, stacks), Stacks, fed.task, fed.task.clients[0])


def test_it_is_a_method() -> None:
    check_method(FLoRA())  # networks without adapters: plain averaging
    check_with_adapters(FLoRA())


def test_the_change_of_one_client_is_scaled() -> None:
    fed = ranked((2,), alpha=6.0)
    (sent,) = updates(fed, kit.Weights)
    plain = sent.payload.tensors
    product = plain[f"{LAYER}.lora_b.weight"] @ plain[f"{LAYER}.lora_a.weight"]
    assert torch.allclose(change(fed, 0, plain), 3 * product)
