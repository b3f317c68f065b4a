"""Fused optimiser steps equal the formulas for every memory layout."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from potluck.core import torch_fast
from potluck.core.torch_fast import backward
from potluck.core.training import Training

KINDS = {
    "sgd": Training(optimizer="sgd", momentum=0.9, weight_decay=0.01),
    "adam": Training(optimizer="adam", weight_decay=0.01),
    "adamw": Training(optimizer="adamw", weight_decay=0.01),
}


def torch_optimizer(name: str, parameters: list[Tensor], lr: float) -> Optimizer:
    if name == "sgd":
        return SGD(parameters, lr, momentum=0.9, weight_decay=0.01)
    return (Adam if name == "adam" else AdamW)(parameters, lr, weight_decay=0.01)


def weights(layout: torch.memory_format) -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(0)
    tensors = torch.randn(4, 3, 5, 5, generator=rng), torch.randn(6, generator=rng)
    return [nn.Parameter(tensors[0].contiguous(memory_format=layout)), nn.Parameter(tensors[1])]


LAST, FIRST = torch.channels_last, torch.contiguous_format


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layout", "new_layout"), [(FIRST, FIRST), (LAST, LAST), (LAST, FIRST), (FIRST, LAST)]
)
def test_steps_are_torchs_own_whatever_the_layout(
    kind: str, layout: torch.memory_format, new_layout: torch.memory_format
):
    tensors, references = weights(layout), weights(layout)
    optimizers = KINDS[kind].make_optimizer(tensors, 0.1), torch_optimizer(kind, references, 0.1)
    assert all(group["fused"] for group in optimizers[0].param_groups)
    rng = torch.Generator().manual_seed(1)
    for _ in range(3):
        gradient = torch.randn(4, 3, 5, 5, generator=rng).contiguous(memory_format=new_layout)
        for parameters, optimizer in zip((tensors, references), optimizers, strict=True):
            parameters[0].grad = gradient.clone(memory_format=torch.preserve_format)
            optimizer.step()  # the second parameter has no gradient
    for actual, same in zip(tensors, references, strict=True):
        torch.testing.assert_close(actual, same, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_that_come_back_in_another_layout_are_put_right(kind: str):
    gradient = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    ends = []
    for layout in (LAST, FIRST):
        parameters = weights(LAST)
        first = KINDS[kind].make_optimizer(parameters, 0.1)
        parameters[0].grad = gradient.clone()
        first.step()
        state = copy.deepcopy(first.state_dict())
        for name, value in state["state"][0].items():
            if value.dim() == 4:
                state["state"][0][name] = value.contiguous(memory_format=layout)
        second = KINDS[kind].make_optimizer(parameters, 0.1)
        second.load_state_dict(state)
        second.step()
        ends.append(parameters[0].detach().clone())
    assert torch.equal(*ends)


def test_two_steps_with_momentum_are_those_of_the_formula():
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = Training(momentum=0.5).make_optimizer([weight], 0.1)
    for gradient in ([1.0, 2.0], [3.0, -1.0]):
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    # v = g₁, w -= 0.1 v; v = 0.5 v + g₂, w -= 0.1 v
    expected = [1 - 0.1 * 1 - 0.1 * (0.5 * 1 + 3), -2 - 0.1 * 2 - 0.1 * (0.5 * 2 - 1)]
    torch.testing.assert_close(
        weight.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0
    )


def test_a_first_step_of_adam_is_one_learning_rate_long():
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = Training(optimizer="adam").make_optimizer([weight], 0.1)
    weight.grad = torch.tensor([3.0, -0.5], dtype=torch.float64)
    optimizer.step()
    steps = [-0.1 * g / (math.sqrt(g * g) + 1e-8) for g in (3.0, -0.5)]
    expected = torch.tensor([1 + steps[0], -2 + steps[1]], dtype=torch.float64)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize(("momentum", "kind"), [(0.0, SGD), (0.9, SGD), (0.9, Adam), (0.9, AdamW)])
def test_steps_without_torchs_wrappers_are_bit_for_bit_its_steps(
    momentum: float, kind: type[Optimizer], decay: float
):
    """What is wrapped around an optimiser loads torch's compiler; what is under it must be all that counts."""
    settings = Training(optimizer=kind.__name__.lower(), momentum=momentum, weight_decay=decay)  # type: ignore[arg-type]
    tensors, references = weights(FIRST), weights(FIRST)
    options = {"momentum": momentum} if kind is SGD else {}
    fused = None if kind is SGD and not momentum else True
    fused_optimizer = settings.make_optimizer(tensors, 0.1)
    usual_one = kind(references, lr=0.1, weight_decay=decay, fused=fused, **options)  # type: ignore[call-arg]
    for _ in range(3):
        for parameters, optimizer in ((tensors, fused_optimizer), (references, usual_one)):
            optimizer.zero_grad()
            sum(parameter.square().sum() for parameter in parameters).backward()
            optimizer.step()
    assert all(torch.equal(actual, same) for actual, same in zip(tensors, references, strict=True))
    for optimizer, parameters in ((fused_optimizer, tensors), (usual_one, references)):
        optimizer.zero_grad()
        parameters[0].sum().backward()
        parameters[0].grad *= 3  # and the other has none
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert [parameter.grad is None for parameter in parameters] == [False, True]
        assert not parameters[0].grad.any()
    assert all(torch.equal(actual, same) for actual, same in zip(tensors, references, strict=True))
    again = settings.make_optimizer(tensors, 0.5)
    again.load_state_dict(copy.deepcopy(usual_one.state_dict()))
    assert again.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_short_backward_pass_gives_the_gradients_of_torch(dtype: torch.dtype):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).to(dtype)
    x, y = torch.randn(5, 1, 8, 8, dtype=dtype), torch.tensor([0, 1, 2, 0, 1])
    gradients = []
    for back in (backward, torch.autograd.backward):
        network.zero_grad()
        for _ in range(2):  # a second pass adds to the first
            back(nn.functional.cross_entropy(network(x), y))
        gradients.append([parameter.grad.clone() for parameter in network.parameters()])
    assert all(torch.equal(actual, same) for actual, same in zip(*gradients, strict=True))


def test_where_there_is_nothing_to_go_back_to_torch_says_so():
    weight = torch.ones(2, requires_grad=True)
    for loss, reason in ((torch.ones(()), "does not require grad"), (weight * 2, "only for scalar outputs")):
        with pytest.raises(RuntimeError, match=reason):
            backward(loss)
    loss = weight.square().sum()
    backward(loss)
    with pytest.raises(RuntimeError, match="second time"):
        backward(loss)


def test_a_hook_that_changes_a_gradient_in_place_does_so_once():
    for _ in range(2):
        weight = torch.ones(2, requires_grad=True)
        loss = weight.sum()
        loss.register_hook(lambda gradient: gradient.mul_(3))
        backward(loss)
        assert weight.grad is not None
        assert weight.grad.tolist() == [3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_two_precisions_in_one_network_take_torchs_steps(kind: str):
    ends = []
    for optimized in (
        KINDS[kind].make_optimizer,
        lambda parameters, lr: torch_optimizer(kind, parameters, lr),
    ):
        parameters = [*weights(FIRST), nn.Parameter(torch.ones(3, dtype=torch.float64))]
        optimizer = optimized(parameters, 0.1)
        optimizer.param_groups[0]["fused"] = True
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = parameter.detach() * 2
            optimizer.step()
        ends.append(parameters)
    assert all(torch.equal(actual, same) for actual, same in zip(*ends, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_torch_makes_the_moments_and_its_kernel_does_the_rest(kind: str, monkeypatch: pytest.MonkeyPatch):
    tensors, references = weights(LAST), weights(LAST)
    fused_optimizer, its = KINDS[kind].make_optimizer(tensors, 0.1), torch_optimizer(kind, references, 0.1)
    for group in its.param_groups:
        group["fused"] = True
    torch_step, calls = type(fused_optimizer).torch_step, []  # type: ignore[attr-defined]
    monkeypatch.setattr(
        type(fused_optimizer), "torch_step", lambda *arguments: calls.append(torch_step(*arguments))
    )
    for number in range(4):
        for parameters, optimizer in ((tensors, fused_optimizer), (references, its)):
            optimizer.zero_grad()
            for parameter in parameters if number != 2 else parameters[:1]:  # once the other has none
                parameter.grad = parameter.detach() * (number + 1)
            optimizer.step()
        assert all(torch.equal(actual, same) for actual, same in zip(tensors, references, strict=True))
    assert len(calls) == 1
    states = [optimizer.state_dict()["state"] for optimizer in (fused_optimizer, its)]
    assert all(torch.equal(states[0][i][name], states[1][i][name]) for i in (0, 1) for name in states[1][i])
    fused_optimizer.zero_grad()
    fused_optimizer.step()  # without any gradient
    assert all(torch.equal(actual, same) for actual, same in zip(tensors, references, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_whose_gradients_overflowed_is_left_out(kind: str):
    parameters = weights(FIRST)
    optimizer = KINDS[kind].make_optimizer(parameters, 0.1)
    for overflowed in (False, True):
        before = [parameter.detach().clone() for parameter in parameters]
        for parameter in parameters:
            parameter.grad = parameter.detach() * 2
        optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(float(overflowed))  # type: ignore[attr-defined]
        optimizer.step()
        stayed = [torch.equal(parameter, same) for parameter, same in zip(parameters, before, strict=True)]
        assert stayed == [overflowed] * 2


# -- the fallback for versions of torch that were not tested -----------------------------------------------------


@pytest.mark.parametrize(
    ("version", "tested"), [("2.13.0+cpu", True), ("2.13.1", True), ("2.6.0", False), ("2.130.0", False)]
)
def test_only_tested_versions_of_torch_take_the_faster_ways(version: str, tested: bool):
    assert torch_fast.is_tested(version) is tested


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0), ("adamw", 0.0)])
@pytest.mark.parametrize("layout", [FIRST, LAST])
def test_fallback_optimizers_take_the_same_steps(
    name: torch_fast.OptimizerName, momentum: float, decay: float, layout: torch.memory_format
):
    rng = torch.Generator().manual_seed(1)
    gradients = [torch.randn(4, 3, 5, 5, generator=rng) for _ in range(4)]
    ends = []
    for fast in (True, False):
        parameters = weights(layout)
        optimizer = torch_fast.make_optimizer(
            name, parameters, 0.1, momentum=momentum, weight_decay=decay, fast=fast
        )
        for gradient in gradients:
            optimizer.zero_grad()
            parameters[0].grad = gradient.clone()  # contiguous, also where the parameter has channels last
            optimizer.step()
        restored = torch_fast.make_optimizer(
            name, parameters, 0.5, momentum=momentum, weight_decay=decay, fast=fast
        )
        restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        parameters[1].grad = torch.ones(6)
        restored.step()
        ends.append(parameters)
    assert all(torch.equal(fast, plain) for fast, plain in zip(*ends, strict=True))


def test_fallback_backward_gives_the_same_gradients():
    gradients = []
    for fast in (True, False):
        weight = torch.tensor([1.0, -2.0], requires_grad=True)
        backward((weight**2).sum(), fast=fast)
        gradients.append(weight.grad.tolist())
    assert gradients == [[2.0, -4.0]] * 2


_RUN = """
import hashlib, sys
import torch
torch.__version__ = sys.argv[1]
torch.set_num_threads(1)
from potluck.core import torch_fast, tree
from potluck.core.training import Training
from potluck.methods.fedavg import FedAvg
from support.tiny import make_loop, tiny
digest = hashlib.sha256()
for name, momentum in (("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0)):
    training = Training(optimizer=name, momentum=momentum, epochs=1, batch_size=4)
    federation = tiny(3, hidden=(5,), norm=True, training=training)
    for tensor in tree.tensors_in(make_loop(FedAvg(), federation).run().state):
        digest.update(tensor.numpy().tobytes())
print(torch_fast.FAST, digest.hexdigest())
"""


def test_a_run_on_an_untested_version_of_torch_has_the_same_bits():
    lines = [
        subprocess.run(
            [sys.executable, "-c", _RUN, version],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for version in ("2.13.0", "2.99.0")
    ]
    (fast, digest), (plain, same) = (line.split() for line in lines)
    assert (fast, plain) == ("True", "False")
    assert digest == same
