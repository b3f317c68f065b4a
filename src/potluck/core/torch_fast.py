"""Faster ways through torch that use its private interfaces, each with a plain fallback that computes the same numbers.

Only this module uses private torch interfaces for speed, and only with the versions in `TESTED`. To add a version, run
`tests/core/test_torch_fast.py` and `tests/repo/test_bits.py` with it. Other versions take the fallback.

They avoid two costs: torch imports its compiler, which takes about a second per process, when an optimiser is made or
steps; and it reports every step to its profiler, which for small networks costs several per cent of a step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils import _python_dispatch, _pytree

TESTED = frozenset({"2.13"})
"""The torch versions, without patch level, with which the faster ways were tested."""

OptimizerName = Literal["sgd", "adam", "adamw"]
Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])
Step = Callable[[Optimizer, Callable[[], float] | None], float | None]


def is_tested(version: str) -> bool:
    """Return whether the faster ways were tested with this version of torch."""
    return ".".join(version.split(".")[:2]) in TESTED


FAST = is_tested(torch.__version__)

BatchNorm = nn.modules.batchnorm._BatchNorm
"""The base class of all batch normalisation layers; torch has no public name for it."""

NormalisationBase = nn.modules.batchnorm._NormBase
"""The base class of all batch and instance normalisation layers; torch has no public name for it."""

DispatchMode = _python_dispatch.TorchDispatchMode
"""Intercepts every operator that runs inside a block; torch has no public name for it."""

tree_flatten, tree_map = _pytree.tree_flatten, _pytree.tree_map
"""Functions over nested containers of tensors, as `torch.func` itself uses them."""


# -- the backward pass ---------------------------------------------------------------------------------------


def backward(loss: Tensor, *, fast: bool = FAST) -> None:
    """Compute the gradients that `loss.backward()` gives.

    Torch first checks for subclasses, nested tensors and logging of the graph. A plain number on the CPU goes straight
    to the autograd engine.
    """
    if (
        not fast
        or type(loss) is not Tensor
        or loss.dim()
        or not loss.requires_grad
        or loss.device.type != "cpu"
    ):
        torch.autograd.backward(loss)
        return
    seed = (torch.ones_like(loss),)
    engine: Any = torch.autograd.Variable._execution_engine
    engine.run_backward((loss,), seed, False, False, (), allow_unreachable=True, accumulate_grad=True)


# -- optimisers ----------------------------------------------------------------------------------------------


def make_optimizer(
    name: OptimizerName,
    parameters: Iterable[Tensor],
    lr: float,
    *,
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    fused: bool | None = None,
    fast: bool = FAST,
) -> Optimizer:
    """Make an optimiser. On the CPU, or if `fused`, a step with moments goes through memory once (fused kernels)."""
    tensors = list(parameters)
    if name == "sgd" and not momentum:
        return (PlainSGD if fast else SGD)(tensors, lr, weight_decay=weight_decay)
    fused = fused or all(tensor.device.type == "cpu" for tensor in tensors) or None
    if name == "sgd":
        sgd = FusedSGD if fast else AlignedSGD
        return sgd(tensors, lr, momentum, weight_decay=weight_decay, fused=fused)
    kinds: dict[str, Any] = (
        {"adam": FusedAdam, "adamw": FusedAdamW} if fast else {"adam": AlignedAdam, "adamw": AlignedAdamW}
    )
    optimizer: Optimizer = kinds[name](tensors, lr, betas, weight_decay=weight_decay, fused=fused)
    return optimizer


class _Aligned(Optimizer):
    """Lays gradients and moments out in memory as their parameters are.

    Torch's fused kernels read the memory of a parameter, its gradient and its moments side by side. Where one of them
    has another layout (channels last, or a gradient set by hand), they silently mix numbers up.
    """

    moments: ClassVar[tuple[str, ...]]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            self._align(group)
        return super().step(closure)

    def _align(self, group: dict[str, Any]) -> list[list[Tensor]]:
        """Align gradients; return the parameters that have one, the gradients, and the existing ones of each moment."""
        moved = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in moved:
            parameter.grad = _with_layout_of(parameter, parameter.grad)
        states = [self.state[parameter] for parameter in moved if parameter in self.state]
        moments = [[state[name] for state in states if name in state] for name in self.moments]
        return [moved, [parameter.grad for parameter in moved], *moments]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the optimiser that `state_dict` describes."""
        super().load_state_dict(state_dict)
        for parameter, moments in self.state.items():
            for name, value in moments.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    moments[name] = _with_layout_of(parameter, value)


def _with_layout_of(parameter: Tensor, value: Tensor) -> Tensor:
    return value if value.stride() == parameter.stride() else torch.empty_like(parameter).copy_(value)


class _AlignedMomentum(_Aligned):
    """SGD's momentum, also where a parameter gets its first gradient later than the others.

    Torch's fused kernel fails then; a momentum of zeros gives the same first step (dampening is 0).
    """

    moments = ("momentum_buffer",)

    def _align(self, group: dict[str, Any]) -> list[list[Tensor]]:
        moved = [parameter for parameter in group["params"] if parameter.grad is not None]
        missing = [
            parameter for parameter in moved if self.state.get(parameter, {}).get("momentum_buffer") is None
        ]
        if len(missing) < len(moved):
            for parameter in missing:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return super()._align(group)


class AlignedSGD(_AlignedMomentum, SGD):
    """Fused SGD with momentum (fallback)."""


class AlignedAdam(_Aligned, Adam):
    """Fused Adam (fallback)."""

    moments = ("exp_avg", "exp_avg_sq", "step")


class AlignedAdamW(_Aligned, AdamW):
    """Fused AdamW (fallback)."""

    moments = AlignedAdam.moments


def _unwrapped(step: Wrapped) -> Wrapped:
    """Mark a step as wrapped already, so that torch adds neither hooks nor its profiler."""
    step.hooked = True  # type: ignore[attr-defined]
    return step


class _Unwrapped(Optimizer):
    """Torch's optimisers without the functions that torch wraps around theirs."""

    torch_step: ClassVar[Step]

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove all gradients, or set them to zero."""
        for group in self.param_groups:
            for tensor in group["params"]:
                if set_to_none or tensor.grad is None:
                    tensor.grad = None
                else:
                    tensor.grad = torch.zeros_like(tensor.grad)

    @_unwrapped
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step."""
        with torch.no_grad():
            return type(self).torch_step(self, closure)


class PlainSGD(_Unwrapped, SGD):
    """SGD without momentum."""

    torch_step = inspect.unwrap(SGD.step)

    @_unwrapped
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step: on the CPU tensor by tensor, as torch does it there."""
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


class _Fused(_Aligned, _Unwrapped):
    """Calls torch's fused kernel directly from the second step on."""

    @_unwrapped
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step."""
        groups = [(group, self._align(group)) for group in self.param_groups]
        if closure is not None or not all(self._is_ready(group, *lists) for group, lists in groups):
            return _Unwrapped.step(self, closure)
        with torch.no_grad():
            for group, lists in groups:
                self._call_kernel(group, *lists)
        return None

    def _is_ready(self, group: dict[str, Any], tensors: list[Tensor], *others: list[Tensor]) -> bool:
        """Return whether torch would only call its kernel once; with loss scaling it checks for overflow first."""
        complete = bool(tensors) and all(len(other) == len(tensors) for other in others)
        return complete and bool(group["fused"]) and not hasattr(self, "found_inf")

    def _call_kernel(self, group: dict[str, Any], *lists: list[Tensor]) -> None:
        """Take the step of one parameter group."""
        raise NotImplementedError


class FusedSGD(_Fused, _AlignedMomentum, SGD):
    """Fused SGD with momentum."""

    torch_step = inspect.unwrap(SGD.step)

    def _call_kernel(self, group: dict[str, Any], *lists: list[Tensor]) -> None:
        names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
        torch._fused_sgd_(*lists, **{name: group[name] for name in names}, is_first_step=False)


class FusedAdam(_Fused, Adam):
    """Fused Adam."""

    torch_step = inspect.unwrap(Adam.step)
    moments = AlignedAdam.moments

    def _call_kernel(self, group: dict[str, Any], *lists: list[Tensor]) -> None:
        _call_adam(torch._fused_adam_, group, *lists)


class FusedAdamW(_Fused, AdamW):
    """Fused AdamW."""

    torch_step = inspect.unwrap(AdamW.step)
    moments = AlignedAdam.moments

    def _call_kernel(self, group: dict[str, Any], *lists: list[Tensor]) -> None:
        _call_adam(torch._fused_adamw_, group, *lists)


def _call_adam(kernel: Callable[..., None], group: dict[str, Any], *lists: list[Tensor]) -> None:
    tensors, gradients, means, squares, steps = lists
    torch._foreach_add_(steps, 1)
    (beta1, beta2), options = group["betas"], ("lr", "weight_decay", "eps", "amsgrad", "maximize")
    named = {name: group[name] for name in options}
    kernel(tensors, gradients, means, squares, [], steps, beta1=beta1, beta2=beta2, **named)


# -- oneDNN -------------------------------------------------------------------------------------


def onednn_linear() -> Any:
    """Return oneDNN's operator for a linear layer, or None where torch has none that was tested."""
    if FAST and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None


def are_transforms_active() -> bool:
    """Return whether `torch.func` transforms run; True in versions that were not tested."""
    return not FAST or bool(torch._C._are_functorch_transforms_active())
