"""Backward passes and optimiser steps that need care: short ways through torch, one pass over memory, half precision.

Torch loads its compiler, a second's work for every process, when an optimiser is first made or steps, only to tell it
to stay away. What lies under those wrappers is used here, and nothing is announced to torch's profiler, which for small
networks takes several per cent of a step.

Torch's fused steps go through the memory of a parameter, its gradient and its moments side by side. Where one of them
is laid out otherwise than the parameter (channels last, or a gradient set by hand), they silently mix numbers up.

With mixed precision losses are computed in half the bits; weights, gradients and messages are kept in full.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import SGD, Adam, AdamW, Optimizer

from potluck.core.errors import PotluckError

Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])
Step = Callable[[Optimizer, Callable[[], float] | None], float | None]


_ENGINE: Any = torch.autograd.Variable._execution_engine


def backward(loss: Tensor) -> None:
    """The gradients that `loss.backward()` gives.

    Torch first looks for much that is not there (subclasses, nested tensors, logs of the whole graph), which for small
    networks takes several per cent of a step. A plain number on the CPU goes straight to its engine.
    """
    if type(loss) is not Tensor or loss.dim() or not loss.requires_grad or loss.device.type != "cpu":
        torch.autograd.backward(loss)
        return
    seed = (torch.ones_like(loss),)
    _ENGINE.run_backward((loss,), seed, False, False, (), allow_unreachable=True, accumulate_grad=True)


def _unannounced(step: Wrapped) -> Wrapped:
    """A step that torch takes for wrapped already: it would call hooks, which nobody has here, and the profiler."""
    step.hooked = True  # type: ignore[attr-defined]
    return step


class _Bare(Optimizer):
    """What torch's optimisers do, without what is wrapped around it."""

    torch_step: ClassVar[Step]

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or make them zeros."""
        for group in self.param_groups:
            for tensor in group["params"]:
                if set_to_none or tensor.grad is None:
                    tensor.grad = None
                else:
                    tensor.grad = torch.zeros_like(tensor.grad)

    @_unannounced
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of the optimiser."""
        with torch.no_grad():
            return type(self).torch_step(self, closure)


class PlainSGD(_Bare, SGD):
    """SGD without moments."""

    torch_step = inspect.unwrap(SGD.step)

    @_unannounced
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step: on the CPU tensor by tensor, as torch does it there, without asking for all that is not there."""
        if closure is not None or self.param_groups[0]["params"][0].device.type != "cpu":
            return super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                rate, decay = group["lr"], group["weight_decay"]
                for tensor in group["params"]:
                    gradient = tensor.grad
                    if gradient is not None:
                        tensor.add_(gradient.add(tensor, alpha=decay) if decay else gradient, alpha=-rate)
        return None


class _Aligned(_Bare):
    """Lays gradients and moments out as their parameters are; from the second step on straight to torch's kernel."""

    moments: ClassVar[tuple[str, ...]]

    @_unannounced
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of the optimiser."""
        works = [(group, self._laid_out(group)) for group in self.param_groups]
        if closure is not None or not all(self._is_ready(group, *lists) for group, lists in works):
            return super().step(closure)
        with torch.no_grad():
            for group, lists in works:
                self._move(group, *lists)
        return None

    def _laid_out(self, group: dict[str, Any]) -> list[list[Tensor]]:
        """The parameters that have a gradient, these gradients, and as many of each moment as there are."""
        moved = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in moved:
            parameter.grad = _like(parameter, parameter.grad)
        states = [self.state[parameter] for parameter in moved if parameter in self.state]
        moments = [[state[name] for state in states if name in state] for name in self.moments]
        return [moved, [parameter.grad for parameter in moved], *moments]

    def _is_ready(self, group: dict[str, Any], tensors: list[Tensor], *others: list[Tensor]) -> bool:
        """Whether torch would only call its kernel, once; in half precision it looks whether gradients overflowed."""
        whole = bool(tensors) and all(len(other) == len(tensors) for other in others)
        return whole and bool(group["fused"]) and not hasattr(self, "found_inf")

    def _move(self, group: dict[str, Any], *lists: list[Tensor]) -> None:
        """A step of one group."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Become the optimiser that `state_dict` described."""
        super().load_state_dict(state_dict)
        for parameter, moments in self.state.items():
            for name, value in moments.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    moments[name] = _like(parameter, value)


class FusedSGD(_Aligned, SGD):
    """SGD."""

    torch_step = inspect.unwrap(SGD.step)
    moments = ("momentum_buffer",)

    def _move(self, group: dict[str, Any], *lists: list[Tensor]) -> None:
        names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
        torch._fused_sgd_(*lists, **{name: group[name] for name in names}, is_first_step=False)


class FusedAdam(_Aligned, Adam):
    """Adam."""

    torch_step = inspect.unwrap(Adam.step)
    moments = ("exp_avg", "exp_avg_sq", "step")

    def _move(self, group: dict[str, Any], *lists: list[Tensor]) -> None:
        _adam(torch._fused_adam_, group, *lists)


class FusedAdamW(_Aligned, AdamW):
    """Adam with weight decay apart."""

    torch_step = inspect.unwrap(AdamW.step)
    moments = FusedAdam.moments

    def _move(self, group: dict[str, Any], *lists: list[Tensor]) -> None:
        _adam(torch._fused_adamw_, group, *lists)


def _adam(kernel: Callable[..., None], group: dict[str, Any], *lists: list[Tensor]) -> None:
    tensors, gradients, means, squares, steps = lists
    torch._foreach_add_(steps, 1)
    (beta1, beta2), options = group["betas"], ("lr", "weight_decay", "eps", "amsgrad", "maximize")
    named = {name: group[name] for name in options}
    kernel(tensors, gradients, means, squares, [], steps, beta1=beta1, beta2=beta2, **named)


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    return value if value.stride() == parameter.stride() else torch.empty_like(parameter).copy_(value)


# -- mixed precision ---------------------------------------------------------------------------------------

Amp = Literal["off", "bf16", "fp16"]
_KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(amp: Amp, device: torch.device) -> AbstractContextManager[object]:
    """A block in which torch computes what it safely can in half precision; with `off`, any block."""
    return nullcontext() if amp == "off" else torch.autocast(device.type, _KINDS[amp])


def check_amp(amp: Amp, device: torch.device) -> None:
    """Refuse half precision on a device for which torch has none."""
    if amp != "off" and not torch.amp.is_autocast_available(device.type):
        raise PotluckError(
            f"training.amp = {amp!r} is not available on engine.device = {device.type!r}; use off."
        )


class Scale:
    """Gradients in `fp16` are too small for their bits: losses are scaled up, gradients back down before a step.

    A step whose gradients overflowed is left out and the scale halved. `bf16` has the range of full precision and
    needs none of this.
    """

    def __init__(self, device: torch.device, saved: dict[str, float] | None = None) -> None:
        self._scaler = GradScaler(device.type)
        self._unscaled: set[int] = set()
        self._held: list[PlainSGD] = []
        if saved:
            self._scaler.load_state_dict(saved)

    def backward(self, loss: Tensor, optimizers: list[Optimizer], others: Sequence[Tensor] = ()) -> None:
        """Gradients of the loss as they would be in full precision, infinite where they overflowed.

        `others` are moved by nobody here: a gradient of theirs that overflowed is taken away.
        """
        torch.autograd.backward(self._scaler.scale(loss))
        self._held = [
            PlainSGD([tensor], lr=0.0) for tensor in others
        ]  # the scaler knows them by their addresses
        for optimizer in [*optimizers, *self._held]:
            if any(tensor.grad is not None for group in optimizer.param_groups for tensor in group["params"]):
                self._scaler.unscale_(optimizer)
                self._unscaled.add(id(optimizer))
        for tensor in others:
            if tensor.grad is not None and not bool(torch.isfinite(tensor.grad).all()):
                tensor.grad = None

    def step(self, optimizer: Optimizer) -> None:
        """A step, unless its gradients overflowed."""
        if id(optimizer) in self._unscaled:
            self._scaler.step(optimizer)
        else:  # nothing of the loss reached it
            optimizer.step()

    def update(self) -> None:
        """Learn from the steps just taken, or left out."""
        if self._unscaled:
            self._scaler.update()
        self._unscaled.clear()

    def state(self) -> dict[str, float]:
        """What the next job has to know."""
        return dict(self._scaler.state_dict())
