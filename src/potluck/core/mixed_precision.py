"""Mixed precision: losses are computed in half the bits; weights, gradients and messages keep full precision."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from potluck.core.errors import PotluckError
from potluck.core.files import read_cpuinfo
from potluck.core.torch_fast import make_optimizer

Amp = Literal["off", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(amp: Amp, device: torch.device) -> AbstractContextManager[object]:
    """Return a block in which torch computes in half precision what it safely can; with `off` it has no effect."""
    return nullcontext() if amp == "off" else torch.autocast(device.type, _DTYPES[amp])


@cache
def is_bf16_slow() -> bool:
    """Return whether the processor is known to emulate bf16, which is then slower than float32."""
    return is_bf16_emulated(read_cpuinfo())


def is_bf16_emulated(cpuinfo: str) -> bool:
    """Return whether the features listed by Linux lack bf16 arithmetic; False where none are listed."""
    lists = (line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features")))
    features = {word for line in lists for word in line.split()}
    return bool(features) and not features & {"avx512_bf16", "amx_bf16", "bf16"}


def check_mixed_precision(amp: Amp, device: torch.device) -> None:
    """Raise for half precision on a device on which torch does not support it."""
    if amp != "off" and not torch.amp.is_autocast_available(device.type):
        raise PotluckError(
            f"training.amp = {amp!r} is not available on engine.device = {device.type!r}; use off."
        )


class LossScaler:
    """Scales losses up and gradients back down in `fp16`, where gradients would be too small for their bits.

    A step whose gradients overflowed is skipped and the scale is halved. `bf16` has the range of full precision and
    needs no scaling.
    """

    def __init__(self, device: torch.device, saved: dict[str, float] | None = None) -> None:
        self._scaler = GradScaler(device.type)
        self._unscaled: set[int] = set()
        self._held: list[Optimizer] = []
        if saved:
            self._scaler.load_state_dict(saved)

    def backward(self, loss: Tensor, optimizers: list[Optimizer], others: Sequence[Tensor] = ()) -> None:
        """Compute gradients as in full precision, infinite where they overflowed.

        `others` have no optimiser here; of these, a gradient that overflowed is set to None.
        """
        torch.autograd.backward(self._scaler.scale(loss))
        # Kept until the next call: the scaler identifies optimisers by their addresses.
        self._held = [make_optimizer("sgd", [tensor], 0.0) for tensor in others]
        for optimizer in [*optimizers, *self._held]:
            if any(tensor.grad is not None for group in optimizer.param_groups for tensor in group["params"]):
                self._scaler.unscale_(optimizer)
                self._unscaled.add(id(optimizer))
        for tensor in others:
            if tensor.grad is not None and not bool(torch.isfinite(tensor.grad).all()):
                tensor.grad = None

    def step(self, optimizer: Optimizer) -> None:
        """Step an optimiser, unless its gradients overflowed."""
        if id(optimizer) in self._unscaled:
            self._scaler.step(optimizer)
        else:  # the loss did not depend on its parameters
            optimizer.step()

    def update(self) -> None:
        """Adapt the scale after the steps of a batch."""
        if self._unscaled:
            self._scaler.update()
        self._unscaled.clear()

    def state(self) -> dict[str, float]:
        """Return the state that a later job continues from."""
        return dict(self._scaler.state_dict())
