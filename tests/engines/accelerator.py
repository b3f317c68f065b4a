"""A fake accelerator: tensors that report another device and do not mix with CPU tensors.

Values are computed on the CPU, so a run on it must give the CPU's very bits. What real accelerators refuse is
refused here: an operation over tensors of both places (single numbers and indices apart), a random stream of
the CPU for a draw elsewhere, and reading memory without copying it back first.

What it cannot show: speed, memory of its own, work that goes on while Python does, rounding of its own, half precision,
and how a real device takes to several processes. There are as many such devices as one likes, `away:0`, `away:1`, …, but
torch knows of one per process: each process may use one of them, whose number it writes to the file `AWAY_LOG`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "away"
aten = torch.ops.aten
MIXED = {aten.copy_.default, aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
"""Operations that take tensors of both places: a copy, and indices from the CPU."""


class Away(Tensor):
    """A tensor on the make-believe device; `here` holds its values."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> Away:
        away = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            here.stride(),
            here.storage_offset(),
            dtype=here.dtype,
            device=torch.device(NAME, 0),
        )
        away.here = here
        return away

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})

    def __repr__(self) -> str:
        return f"Away({self.here!r})"

    def tolist(self) -> Any:
        """Numbers come back by themselves, as from any device."""
        return self.here.tolist()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        """Numbers brought here; torch does it out of sight of dispatch."""
        return self.here.new_tensor(data, **options).to(self.device)


class MixedDevices(RuntimeError):
    """What an accelerator says when it is handed tensors that lie elsewhere."""


def compute(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation as the device would do it."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    away = [tensor for tensor in tensors if isinstance(tensor, Away)]
    wanted = kwargs.get("device")
    target = torch.device(wanted).type if wanted is not None else NAME if away else "cpu"
    if target == NAME and wanted is not None:
        _note(torch.device(wanted).index)
    _check(function, args, tensors, away)
    if target == NAME and kwargs.get("generator") is not None:
        raise MixedDevices(f"{function} draws on the accelerator from a random stream of the CPU")
    if not away and target != NAME:
        return function(*args, **kwargs)
    if target == NAME and wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = function(*_here(args), **_here(kwargs))
    if function._schema.name.endswith("_"):  # in place: the object it was called on, or nothing
        return args[0] if function._schema.returns else None
    if target != NAME:
        return result
    return tree_map(lambda leaf: Away(leaf) if isinstance(leaf, Tensor) else leaf, result)


def _check(function: Any, args: Any, tensors: list[Tensor], away: list[Tensor]) -> None:
    strangers = [tensor for tensor in tensors if not isinstance(tensor, Away) and tensor.dim()]
    if not away or not strangers or function is aten.copy_.default:
        return
    if function in MIXED and isinstance(args[0], Away):  # the CPU cannot be indexed from an accelerator
        values = args[2:3]
        if all(isinstance(value, Away) or not value.dim() for value in values if isinstance(value, Tensor)):
            return
    raise MixedDevices(f"{function} was given tensors of the accelerator and of the CPU")


_numbers: set[int | None] = set()


def _note(number: int | None) -> None:
    """Write down which of the devices this process asks for."""
    if number not in _numbers and "AWAY_LOG" in os.environ:
        with open(os.environ["AWAY_LOG"], "a", encoding="utf-8") as log:
            log.write(f"{os.getpid()} {number or 0}\n")
    _numbers.add(number)


def _here(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.here if isinstance(leaf, Away) else leaf, value)


class _Factories(TorchDispatchMode):
    """Catches what makes tensors on the device out of nothing, or of the CPU's."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})


_setup_privateuseone_for_python_backend(
    NAME
)  # before the process's first backward pass, or autograd has no thread for it


@contextmanager
def accelerator() -> Iterator[str]:
    """The device's name, for as long as the block lasts."""

    def placed(make: Any) -> Any:
        """A maker of tensors from numbers, which torch does out of sight of dispatch modes."""

        def make_and_move(*args: Any, device: Any = None, **options: Any) -> Tensor:
            made: Tensor = make(*args, **options)
            return made if device is None else made.to(device)

        return make_and_move

    def in_thread(thread: threading.Thread) -> None:
        """A dispatch mode is of one thread alone; devices are there in all of them."""
        with _Factories():
            run(thread)

    makers, run = (torch.tensor, torch.as_tensor), threading.Thread._bootstrap_inner
    torch.tensor, torch.as_tensor = (placed(make) for make in makers)
    threading.Thread._bootstrap_inner = in_thread
    try:
        with _Factories():
            yield NAME
    finally:
        torch.tensor, torch.as_tensor = makers
        threading.Thread._bootstrap_inner = run
